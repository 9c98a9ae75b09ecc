"""PARS: a burst of 2,000 requests, and arrival rates up to saturation, at the paper's tau-b.

Llama-3-8B on an A100-40GB from first principles, 256 seats, budget 2,048 tokens. Short outputs are
those of Vicuna-7B on Alpaca, long ones those of reasoning models on MisguidedAttention, where the
data folder is there; else log-normal ones. Scores are synthetic, each with the tau-b that the paper
reports; latency is E2E / output tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from scheduler_adapters.experiments.metrics import Statistic, summarize
from scheduler_adapters.experiments.reproduce import ReproduceConfig, Row
from scheduler_adapters.experiments.workload import (
    LENGTH_STREAM,
    Ints,
    Requests,
    make_requests,
    poisson_arrivals_s,
    read_table,
    read_trace,
)
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.scores import OracleScores, SyntheticScores, achieved_tau_b
from scheduler_adapters.simulator.data_folder import data_file
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.simulation import simulate
from scoring_service.errors import ConfigError, DataError

NUM_REQUESTS = 2000
_LONGEST = 16_384
"""Tokens of the longest response."""
SYSTEMS = ("FCFS", "pointwise", "listwise", "PARS", "cross-model PARS", "Oracle")


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Output lengths of one model, and how well each predictor orders them in the paper."""

    median_tokens: int
    sigma: float
    """Of the logarithm."""
    tau_b: dict[str, float]
    file: str = ""
    """In the data folder, where lengths were recorded."""
    columns: tuple[str, ...] = ()
    """Whose sum is the output length."""

    def draw(self, count: int, random: np.random.Generator) -> Ints:
        """Output lengths (count,)."""
        recorded = self._recorded()
        if recorded is not None:
            return random.choice(recorded, count)
        drawn = random.lognormal(np.log(self.median_tokens), self.sigma, count)
        return np.clip(drawn, 1, _LONGEST).astype(np.int64)

    def _recorded(self) -> Ints | None:
        if not self.file:
            return None
        try:
            table = read_table(data_file(self.file))
        except (ConfigError, DataError):
            return None
        tokens = table[list(self.columns)].sum(axis=1).to_numpy()
        if "reasoning_visible" in table:
            tokens = tokens[table["reasoning_visible"].to_numpy()]
        return np.clip(tokens[tokens > 0], 1, _LONGEST).astype(np.int64)


_SHORT_TAU_B = {"PARS": 0.75, "listwise": 0.67, "pointwise": 0.64, "cross-model PARS": 0.65}
_LONG_TAU_B = {"PARS": 0.61, "listwise": 0.50, "pointwise": 0.30, "cross-model PARS": 0.51}
SHORT, LONG = "short outputs", "long outputs"
SHORT_MODEL, LONG_MODEL = "short log-normal outputs", "long log-normal outputs"
WORKLOADS = {
    SHORT_MODEL: Lengths(median_tokens=160, sigma=1.1, tau_b=_SHORT_TAU_B),
    LONG_MODEL: Lengths(median_tokens=1100, sigma=0.75, tau_b=_LONG_TAU_B),
    SHORT: Lengths(
        median_tokens=160,
        sigma=1.1,
        tau_b=_SHORT_TAU_B,
        file="alpaca-vicuna7b/alpaca_vicuna7b_lengths.parquet",
        columns=("vicuna_tokens_t0_7",),
    ),
    LONG: Lengths(
        median_tokens=1100,
        sigma=0.75,
        tau_b=_LONG_TAU_B,
        file="reasoning/MisguidedAttention_lengths.parquet",
        columns=("reasoning_tokens", "answer_tokens"),
    ),
}
"""Medians as an earlier prototype had them; the spreads are fitted to its oracle's mean."""


class Experiment:
    """Runs systems and remembers what they gave."""

    def __init__(self, config: ReproduceConfig) -> None:
        self.config = config
        self.instance = Instance.preset("llama-3-8b@a100-40g", max_num_seqs=256, max_tokens=2048)
        self.latency = cache(self._latency)

    def _latency(
        self,
        workload: str,
        system: str,
        guard: bool = True,
        load: float | None = None,
        seats: int = 256,
    ) -> tuple[float, float]:
        """Mean and P90 of E2E / tokens in seconds, means over the seeds."""
        statistics = [
            self._measure(workload, system, guard, load, seats, seed)
            for seed in range(self.config.seeds)
        ]
        return (
            float(np.mean([statistic.mean for statistic in statistics])),
            float(np.mean([statistic.p90 for statistic in statistics])),
        )

    def _measure(
        self, workload: str, system: str, guard: bool, load: float | None, seats: int, seed: int
    ) -> Statistic:
        requests = self._requests(workload, seed)
        if load is not None:
            rate_per_s = load * self._saturation_per_s(workload)
            arrival_s = poisson_arrivals_s(len(requests), rate_per_s=rate_per_s, seed=seed)
            requests = replace(requests, arrival_s=arrival_s)
        if system == "Oracle":
            requests = requests.with_scores(OracleScores().scores(requests))
        elif system != "FCFS":
            tau_b = WORKLOADS[workload].tau_b[system]
            requests = requests.with_scores(
                SyntheticScores(tau_b=tau_b, seed=seed).scores(requests)
            )
        policy = pars(starve_after_s=120.0 if guard else None)
        instance = replace(self.instance, max_num_seqs=seats)
        return summarize(simulate(requests, policy, instance)).normalized_latency_s

    def _requests(self, workload: str, seed: int) -> Requests:
        count = int(NUM_REQUESTS * self.config.scale)
        random = np.random.default_rng((seed, LENGTH_STREAM))
        prompt = random.lognormal(np.log(40), 0.8, count)
        return make_requests(
            prompt_tokens=np.clip(prompt, 1, 2048).astype(np.int64),
            output_tokens=WORKLOADS[workload].draw(count, random),
        )

    def _saturation_per_s(self, workload: str) -> float:
        """Requests per second that FCFS serves while there is always work: the first half."""
        finished_s = simulate(self._requests(workload, 0), FCFS(), self.instance).finished_s
        return float(len(finished_s) / 2 / np.median(finished_s))


def rows(config: ReproduceConfig) -> list[Row]:
    """The rows of the paper's evaluation that a simulation can show."""
    experiment = Experiment(config)
    return [
        *_burst_rows(experiment),
        *_anchor_rows(experiment),
        *_order_rows(experiment),
        *_guard_rows(experiment),
        *_cross_model_rows(experiment),
        *([] if config.scored is None else _trained_rows(experiment, config.scored)),
    ]


def _speedup(
    experiment: Experiment, workload: str, system: str, guard: bool = True, seats: int = 256
) -> tuple[float, float]:
    """How many times lower than under FCFS: mean and P90."""
    fcfs = experiment.latency(workload, "FCFS", guard, None, seats)
    other = experiment.latency(workload, system, guard, None, seats)
    return fcfs[0] / other[0], fcfs[1] / other[1]


def _burst_rows(experiment: Experiment) -> list[Row]:
    """The paper gives the best case and no batch size, so the seats are swept."""
    bands = {
        SHORT: (("up to 7.7x", 4.0, 20.0), ("up to 8x", 4.0, 20.0)),
        LONG: (("> 2x", 1.7, 4.0), ("> 2x", 1.7, 8.0)),
    }
    made = []
    for workload, statistics in bands.items():
        swept = [_speedup(experiment, workload, "PARS", seats=seats) for seats in (256, 128, 64)]
        # "Up to" is met by the best case, "more than" by the default of the engine.
        chosen = np.max(swept, axis=0) if workload == SHORT else swept[0]
        for k, (name, (paper, least, most)) in enumerate(
            zip(("mean", "P90"), statistics, strict=True)
        ):
            made.append(
                Row(
                    metric=f"{name} latency per token, how many times lower",
                    workload=f"burst of 2,000, {workload}",
                    baseline="FCFS",
                    paper=paper,
                    ours=" / ".join(f"{values[k]:.1f}x" for values in swept),
                    reproduced=bool(least <= chosen[k] <= most),
                    note=f"with 256 / 128 / 64 seats; band: {least:g}x to {most:g}x for the "
                    + ("best" if workload == SHORT else "first"),
                )
            )
    return made


def _anchor_rows(experiment: Experiment) -> list[Row]:
    """Figures of an earlier, independent prototype; the shape of its lengths was not recorded."""
    anchors = {
        (SHORT_MODEL, "PARS", True): (3.9, 5.6),
        (SHORT_MODEL, "Oracle", True): (4.4, 7.3),
        (LONG_MODEL, "PARS", True): (2.4, 2.6),
        (LONG_MODEL, "Oracle", True): (3.2, 3.5),
        (LONG_MODEL, "PARS", False): (3.0, 3.9),
    }
    made = []
    for (workload, system, guard), (mean, p90) in anchors.items():
        ours = _speedup(experiment, workload, system, guard)
        made.append(
            Row(
                metric=f"{system}, mean / P90 speed-up" + ("" if guard else " without the guard"),
                workload=f"burst of 2,000, {workload}",
                baseline="FCFS",
                paper=f"prototype {mean} / {p90}",
                ours=f"{ours[0]:.1f} / {ours[1]:.1f}",
                reproduced=abs(ours[0] / mean - 1) <= 0.15 and abs(ours[1] / p90 - 1) <= 0.15,
                note="band: 15% around an independent prototype",
            )
        )
    return made


def _order_rows(experiment: Experiment) -> list[Row]:
    made = []
    for workload in (SHORT, LONG):
        for load in (None, 0.8, 1.0, 1.2):
            ms = {
                system: 1e3 * experiment.latency(workload, system, True, load)[0]
                for system in ("Oracle", "PARS", "listwise", "pointwise", "FCFS")
            }
            # At loads without a queue everybody is equal up to a percent.
            ordered = list(ms.values())
            slack = 1.01 if load is not None and load < 1 else 1.0
            gap = (ms["PARS"] - ms["Oracle"]) / max(ms["FCFS"] - ms["Oracle"], 1e-9)
            holds = all(a <= b * slack for a, b in pairwise(ordered))
            queues = ms["FCFS"] > 1.2 * ms["Oracle"]
            made.append(
                Row(
                    metric="mean latency, order Oracle < PARS < listwise < pointwise < FCFS",
                    workload=f"{workload}, " + ("burst" if load is None else f"load {load:g}"),
                    baseline="all",
                    paper="holds; PARS within 200 ms/token of the oracle",
                    ours=" < ".join(f"{system} {value:.0f}" for system, value in ms.items())
                    + f" ms/token, gap {gap:.0%}",
                    reproduced=holds and (gap < 0.25 or not queues),
                    note="band: order holds, PARS covers 75% of the way from FCFS to the oracle",
                )
            )
    return made


def _guard_rows(experiment: Experiment) -> list[Row]:
    workload = LONG
    with_guard = _speedup(experiment, workload, "PARS")[0]
    without = _speedup(experiment, workload, "PARS", guard=False)[0]
    return [
        Row(
            metric="what the starvation guard costs: mean speed-up with and without it",
            workload=f"burst of 2,000, {workload}",
            baseline="FCFS",
            paper="not reported; the boost turns a long queue into FCFS",
            ours=f"{with_guard:.1f}x with, {without:.1f}x without",
            reproduced=with_guard < without,
            note="band: lower with the guard",
        )
    ]


def _cross_model_rows(experiment: Experiment) -> list[Row]:
    return [
        Row(
            metric="scores of another model's predictor: mean speed-up",
            workload=f"burst of 2,000, {workload}",
            baseline="FCFS",
            paper="> 2x, a little behind PARS",
            ours=f"{cross:.1f}x (PARS {own:.1f}x)",
            reproduced=1.8 < cross < own,
            note="band: above 1.8x, below PARS; tau-b .1 lower",
        )
        for workload in (SHORT, LONG)
        for cross, own in [
            (
                _speedup(experiment, workload, "cross-model PARS")[0],
                _speedup(experiment, workload, "PARS")[0],
            )
        ]
    ]


def _trained_rows(experiment: Experiment, scored: Path) -> list[Row]:
    """The same burst under the scores of a trained ranker."""
    requests = read_trace(scored, limit=NUM_REQUESTS)
    requests = replace(requests, arrival_s=np.zeros(len(requests)))
    seconds = {
        name: summarize(simulate(scores_of, pars(), experiment.instance)).normalized_latency_s.mean
        for name, scores_of in {
            "Oracle": requests.with_scores(OracleScores().scores(requests)),
            "PARS": requests,
            "FCFS": requests.with_scores(np.nan),
        }.items()
    }
    tau_b = achieved_tau_b(requests.score, requests.output_tokens)
    return [
        Row(
            metric="mean latency, order Oracle < PARS < FCFS, trained ranker",
            workload=f"burst of {len(requests)} from {scored.name}, tau-b {tau_b:.2f}",
            baseline="FCFS",
            paper="holds",
            ours=" < ".join(f"{name} {1e3 * value:.0f}" for name, value in seconds.items())
            + " ms/token",
            reproduced=seconds["Oracle"] < seconds["PARS"] < seconds["FCFS"],
            note="band: order holds",
        )
    ]
