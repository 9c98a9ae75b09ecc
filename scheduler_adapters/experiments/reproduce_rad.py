"""RAD: the capacity bound of Theorem 1, and who keeps it.

Llama-3-8B on an A100-80GB under the paper's staircase of tiles; prompts and outputs log-normal
(medians 500 and 200 tokens), prompts whole tiles. Load 1 is one request per mean work (T-bar):
above it every queue grows without end, below it RAD's must empty again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from scheduler_adapters.experiments.metrics import statistic, summarize, token_gaps
from scheduler_adapters.experiments.reproduce import ReproduceConfig, Row
from scheduler_adapters.experiments.timeline import Timeline
from scheduler_adapters.experiments.workload import (
    LENGTH_STREAM,
    Requests,
    make_requests,
    poisson_arrivals_s,
)
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.prefill_first import PrefillFirst, RequestLevel
from scheduler_adapters.policies.rad import RAD, RADTwin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.simulation import simulate
from scheduler_adapters.simulator.staircase import StaircaseLatency
from scoring_service.errors import ConfigError

NUM_REQUESTS = 4000
TILE = 128
CYCLE = 1024
"""Requests started per cycle (n); the theorem wants it large near the bound."""

SYSTEMS: dict[str, Callable[[], Policy]] = {
    "RAD": partial(RAD, max_started=CYCLE, tile=TILE),
    "RAD's twin": partial(RADTwin, max_started=CYCLE, tile=TILE),
    "FCFS": FCFS,
    "Sarathi": Sarathi,
    "vLLM prefill-first": PrefillFirst,
    "request-level": RequestLevel,
    "PARS": pars,
    "SLAI": SLAI,
}


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests at a share of the bound."""

    requests: Requests
    mean_work_s: float
    rate_per_s: float


class Experiment:
    """The instance, and runs on it."""

    def __init__(self, config: ReproduceConfig) -> None:
        self.config = config
        # The theorem assumes room for a tile of the longest requests: memory is not its subject.
        self.instance = Instance.preset(
            "llama-3-8b@a100-80g:staircase", max_num_seqs=4096, max_tokens=4096, kv_blocks=10**6
        )
        if not isinstance(self.instance.latency, StaircaseLatency):
            raise ConfigError("the preset :staircase is no staircase; the bound needs one")
        self.latency = self.instance.latency

    def load(self, share: float, seed: int = 0) -> Load:
        """Poisson arrivals at `share` of the highest rate that any scheduler can sustain."""
        count = int(NUM_REQUESTS * self.config.scale)
        random = np.random.default_rng((seed, LENGTH_STREAM))
        tile = self.latency.chunk_tokens
        prompt = np.ceil(np.clip(random.lognormal(np.log(500), 0.8, count), 1, 4096) / tile) * tile
        output = np.clip(random.lognormal(np.log(200), 0.8, count), 1, 2048).astype(np.int64)
        mean_work_s = self.latency.mean_work_s(prompt, output)
        rate_per_s = share / mean_work_s
        requests = make_requests(
            prompt_tokens=prompt,
            output_tokens=output,
            arrival_s=poisson_arrivals_s(count, rate_per_s=rate_per_s, seed=seed),
        )
        # A burst of the first arrivals would not change the slope; the actual rate does.
        achieved_per_s = count / requests.arrival_s[-1]
        requests = replace(requests, arrival_s=requests.arrival_s * achieved_per_s / rate_per_s)
        return Load(requests=requests, mean_work_s=mean_work_s, rate_per_s=rate_per_s)

    def run(self, system: str, load: Load) -> Timeline:
        """One system under a load."""
        requests = load.requests.with_scores(load.requests.output_tokens)
        return simulate(requests, SYSTEMS[system](), self.instance)


def rows(config: ReproduceConfig) -> list[Row]:
    """The checks of the theory."""
    experiment = Experiment(config)
    above, below = experiment.load(1.05), experiment.load(0.8)
    return [
        *(_slope_row(experiment, system, above) for system in SYSTEMS),
        _work_row(experiment, above),
        _stability_row(experiment, "RAD", below),
        _stability_row(experiment, "RAD's twin", below),
        *_twin_rows(experiment, below),
    ]


def backlog(timeline: Timeline, at_s: np.ndarray) -> np.ndarray:
    """Requests that have arrived and not finished at instants (K,)."""
    arrived = np.searchsorted(timeline.requests.arrival_s, at_s, "right")
    return np.asarray(arrived - np.searchsorted(np.sort(timeline.finished_s), at_s, "right"))


def _slope_per_s(timeline: Timeline, *, after: float = 0.0) -> float:
    """Growth of the backlog in requests per second while requests arrive, by least squares.

    `after` leaves out that share of the time, for what is stable has to fill up first.
    """
    last_s = timeline.requests.arrival_s[-1]
    at_s = np.linspace(after * last_s, last_s, 400)
    return float(np.polyfit(at_s, backlog(timeline, at_s), 1)[0])


def _slope_row(experiment: Experiment, system: str, load: Load) -> Row:
    slope = _slope_per_s(experiment.run(system, load))
    least = load.rate_per_s - 1 / load.mean_work_s
    return Row(
        metric="growth of the backlog at load 1.05",
        workload=f"{load.rate_per_s:.2f} req/s, bound {1 / load.mean_work_s:.2f}",
        baseline=system,
        paper=f"above 0; work comes {least:.3f} req/s faster than it can be done",
        ours=f"{slope:.3f} req/s",
        reproduced=slope > 0,
        note="band: above 0; who serves small requests first counts fewer of them",
    )


def _work_row(experiment: Experiment, load: Load) -> Row:
    """Nobody can do the work in less time than the bound says."""
    timeline = experiment.run("RAD", load)
    busy_s = float(np.diff(timeline.tick_s, prepend=0.0).sum())
    share = busy_s / (load.mean_work_s * len(load.requests))
    return Row(
        metric="time spent / least time for the same requests",
        workload="load 1.05",
        baseline="RAD",
        paper=">= 1, close to 1 for full tiles",
        ours=f"{share:.3f}",
        reproduced=share >= 1,
        note="band: not below 1",
    )


def _stability_row(experiment: Experiment, system: str, load: Load) -> Row:
    """A cycle ends when all started requests are done; the theorem bounds its mean length."""
    timeline = experiment.run(system, load)
    ends_s = _cycle_ends_s(timeline)
    mean_cycle_s = float(np.diff(ends_s, prepend=0.0).mean()) if len(ends_s) else float("inf")
    bound_s = CYCLE * load.mean_work_s + (TILE - 1) * _longest_work_s(experiment, load)
    slope = _slope_per_s(timeline, after=0.5)
    return Row(
        metric="cycles end, and the backlog does not grow, at load 0.8",
        workload=f"{load.rate_per_s:.2f} req/s, n = {CYCLE}",
        baseline=system,
        paper=f"mean cycle <= {bound_s:.0f} s",
        ours=f"{len(ends_s)} cycles, {mean_cycle_s:.0f} s each; backlog {slope:+.3f} req/s",
        reproduced=len(ends_s) >= 2 and mean_cycle_s <= bound_s and slope <= 0.02 * load.rate_per_s,
        note="band: two cycles or more, within the bound, growth below 2% of the rate",
    )


def _cycle_ends_s(timeline: Timeline) -> np.ndarray:
    """Ends of steps after which every started request is finished, while requests arrive."""
    at_s = timeline.tick_s[timeline.tick_s <= timeline.requests.arrival_s[-1]]
    started = np.searchsorted(np.sort(timeline.scheduled_s), at_s, "left")
    finished = np.searchsorted(np.sort(timeline.finished_s), at_s, "right")
    return np.asarray(at_s[started == finished])


def _longest_work_s(experiment: Experiment, load: Load) -> float:
    """T-max: the longest prompt and response, token by token and alone."""
    latency, requests = experiment.latency, load.requests
    longest = int(requests.prompt_tokens.max() + requests.output_tokens.max())
    linear_s = longest * (latency.linear_pass_s + latency.per_token_s)
    return linear_s + latency.decode_attention_s(np.arange(1, longest + 1))


def _twin_rows(experiment: Experiment, load: Load) -> list[Row]:
    rad, twin = (experiment.run(system, load) for system in ("RAD", "RAD's twin"))
    rad_ttft_s, twin_ttft_s = (summarize(timeline).ttft_s.mean for timeline in (rad, twin))
    rad_tbt_s, twin_tbt_s = (_p90_gap_s(timeline) for timeline in (rad, twin))
    return [
        Row(
            metric="mean TTFT",
            workload="load 0.8",
            baseline="RAD's twin",
            paper="RAD lower",
            ours=f"{twin_ttft_s:.2f} -> {rad_ttft_s:.2f} s",
            reproduced=rad_ttft_s < twin_ttft_s,
            note="band: lower",
        ),
        Row(
            metric="P90 time between tokens",
            workload="load 0.8",
            baseline="RAD's twin",
            paper="RAD higher",
            ours=f"{1e3 * twin_tbt_s:.1f} -> {1e3 * rad_tbt_s:.1f} ms",
            reproduced=rad_tbt_s > twin_tbt_s,
            note="band: higher",
        ),
    ]


def _p90_gap_s(timeline: Timeline) -> float:
    return statistic(*token_gaps(timeline)).p90
