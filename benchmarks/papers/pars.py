"""PARS: a burst of 2,000 requests, and arrival rates up to saturation (`pars.toml`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from benchmarks.papers.runs import Experiment, ReproduceConfig, kept, paper_file, recorded
from benchmarks.studies.rivals import served_per_s
from lengthwise.errors import DataError
from lengthwise.tables.reading import read_table
from scheduler_adapters.policies.prefill_first import RequestLevel
from scheduler_adapters.policies.shortest_predicted import pars_paper
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.workload.arrivals import LENGTH_STREAM, ORDER_STREAM, arrivals_s
from scheduler_adapters.workload.requests import Ints, Requests, make_requests
from scheduler_adapters.workload.score_sources import (
    achieved_tau_b,
    open_prompt_scorer,
    synthetic_scores,
)
from scheduler_adapters.workload.traces import read_trace

_MODEL, _GPU = "llama-3-8b", "a100-40g"
_TOKEN_BUDGET = 2048
NUM_REQUESTS = 2000
_LONGEST = 16_384
"""Tokens of the longest response."""


@dataclass(frozen=True)
class Lengths:
    """Output lengths of one model, and the tau-b of each predictor in the paper."""

    median_tokens: int
    sigma: float
    """Standard deviation of the logarithm."""
    tau_b: Mapping[str, float]
    file: str
    """File of recorded lengths in the data folder."""
    columns: Sequence[str]
    """Columns whose sum is the output length."""

    def draw(self, count: int, random: np.random.Generator) -> Ints:
        """Draw output lengths (count,), recorded ones where there are some."""
        if (table := recorded(self.file, read_table)) is None:
            drawn = random.lognormal(np.log(self.median_tokens), self.sigma, count)
            return np.clip(drawn, 1, _LONGEST).astype(np.int64)
        tokens = table[list(self.columns)].sum(axis=1).to_numpy()
        if "reasoning_visible" in table:
            tokens = tokens[table["reasoning_visible"].to_numpy()]
        return random.choice(np.clip(tokens[tokens > 0], 1, _LONGEST).astype(np.int64), count)


TRAINED: Final = "trained ranker"


def instance_of(seats: int = 256) -> Instance:
    """Return the served model."""
    return Instance.preset(f"{_MODEL}@{_GPU}", max_num_seqs=seats, max_tokens=_TOKEN_BUDGET)


_MEAN: Final = "normalized_latency_s.mean"
UNGUARDED: Final = " without the guard"


class ParsExperiment(Experiment):
    """Runs by system and workload; `UNGUARDED` systems do not protect starving requests."""

    def __init__(self, config: ReproduceConfig) -> None:
        super().__init__(config)
        self.lengths = {n: Lengths(**own) for n, own in paper_file("pars")["lengths"].items()}
        served = instance_of()
        kv_tokens = served.kv_blocks * served.block_tokens
        self.longest_step_s = served.latency.step_s(256, kv_tokens, [(0, _TOKEN_BUDGET)])

    @kept
    def run(
        self,
        system: str,
        *,
        lengths: str,
        load: float | None = None,
        seats: int = 256,
        batch: int | None = None,
        seed: int,
    ) -> dict[str, float]:
        """Return the summary of a run, and the longest wait for a first step.

        `batch` is the size of static batches; None: continuous batching.
        """
        requests = self._requests(lengths, seed)
        if load is not None:
            rate_per_s = load * self.saturation_per_s(lengths)
            arrival_s = arrivals_s(len(requests), rate_per_s=rate_per_s, seed=seed)
            requests = replace(requests, arrival_s=arrival_s)
        output, order = requests.output_tokens, system.removesuffix(UNGUARDED)
        if order in ("FCFS", "Oracle"):
            requests = requests.with_scores(0.0 if order == "FCFS" else output)
        elif lengths != TRAINED:
            tau_b = self.lengths[lengths].tau_b[order]
            requests = requests.with_scores(synthetic_scores(output, tau_b=tau_b, seed=seed))
        after_s = 120.0 if order == system else None
        policy = pars_paper(starve_after_s=after_s)
        if batch:
            policy = RequestLevel(max_batch=batch, inside="pars-paper", starve_after_s=after_s)
        timeline = simulate(requests, policy, instance_of(seats), loop="compiled")
        longest_wait_s = float(np.max(timeline.scheduled_s - requests.arrival_s))
        return summarize(timeline).flat() | {"longest_wait_s": longest_wait_s}

    def _requests(self, lengths: str, seed: int) -> Requests:
        if lengths == TRAINED:
            order = np.random.default_rng((seed, ORDER_STREAM)).permutation(len(self.scored))
            return replace(self.scored.take(order), arrival_s=np.zeros(len(order)))
        count = int(NUM_REQUESTS * self.config.scale)
        random = np.random.default_rng((seed, LENGTH_STREAM))
        prompt = random.lognormal(np.log(40), 0.8, count)
        return make_requests(
            prompt_tokens=np.clip(prompt, 1, 2048).astype(np.int64),
            output_tokens=self.lengths[lengths].draw(count, random),
        )

    @cached_property
    def scored(self) -> Requests:
        """The trace in the order of a trained ranker."""
        assert self.config.scored is not None
        scores = self.config.scores
        scorer = None if scores == "trace" else open_prompt_scorer(scores)
        requests = read_trace(self.config.scored, limit=NUM_REQUESTS, scorer=scorer)
        if num_unscored := int(np.isnan(requests.score).sum()):
            raise DataError(
                f"{num_unscored} requests have no score; give a column "
                "'score', or --scores bundle:PATH and a column 'prompt'",
                path=self.config.scored,
            )
        return requests

    @kept
    def saturation_per_s(self, lengths: str) -> float:
        """Requests per second that FCFS serves from a full queue: the first half of a burst."""
        return served_per_s(self._requests(lengths, 0), instance_of())

    def words(self, lengths: str, load: float | None = None, **rest: Any) -> dict[str, Any]:
        """Return the load, and tau-b and size of the trace in the order of a trained ranker."""
        found: dict[str, Any] = {"at": "burst" if load is None else f"load {load:g}"}
        if lengths == TRAINED:
            requests = self.scored
            found["tau_b"] = achieved_tau_b(requests.score, requests.output_tokens)
            found["count"] = len(requests)
        return found

    def burst(
        self, lengths: str, figures: Sequence[str], system: str = "PARS", **setting: Any
    ) -> dict[str, Any]:
        """Return how many times lower figures are than under FCFS, by figure and seed (`times`).

        `value` is that of the first figure.
        """
        pairs = (self.pair(one, "FCFS", system, lengths=lengths, **setting) for one in figures)
        times = [1 / pair["ratio"] for pair in pairs]
        return {"system": system, "value": times[0], "times": times}

    def order(
        self, lengths: str, load: float | None = None, others: Sequence[str] = (), **more: Any
    ) -> dict[str, Any]:
        """Return the latencies from the oracle and PARS to FCFS; the order of `others` is free.

        All requests arrive at once, or at a share of the rate at which FCFS saturates. `value` is
        PARS's latency beyond the oracle's in ms, `wait_ms` the longest wait for a first step under
        FCFS, `step_ms` the time of the longest step.
        """
        setting: dict[str, Any] = {"lengths": lengths, "load": load, **more}
        systems = ("Oracle", "PARS", *others, "FCFS")
        ms = {system: 1e3 * self.mean(_MEAN, system, **setting) for system in systems}
        oracle, own, *between, fcfs = ms.values()
        each = ", ".join(f"{system} {value:.1f}" for system, value in ms.items())
        holds = oracle < own < min([*between, fcfs]) and max([own, *between]) < fcfs
        wait_s = self.values("longest_wait_s", "FCFS", **setting).max()
        waits = {"wait_ms": 1e3 * wait_s, "step_ms": 1e3 * self.longest_step_s}
        return {"holds": holds, "value": own - oracle, "each": each, **waits}
