"""PARS: a burst of 2,000 requests, and arrival rates up to saturation (`pars.toml`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from lengthwise.errors import DataError
from scheduler_adapters.papers.runs import Experiment, ReproduceConfig, recorded
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.facts import GPUS, MODELS
from scheduler_adapters.simulator.latency.first_principles import kv_blocks
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.workload.arrivals import LENGTH_STREAM, ORDER_STREAM, poisson_arrivals_s
from scheduler_adapters.workload.requests import Ints, Requests, make_requests
from scheduler_adapters.workload.score_sources import (
    achieved_tau_b,
    open_prompt_scorer,
    synthetic_scores,
)
from scheduler_adapters.workload.table_files import read_table
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
    file: str = ""
    """File of recorded lengths in the data folder."""
    columns: tuple[str, ...] = ()
    """Columns whose sum is the output length."""

    def draw(self, count: int, random: np.random.Generator) -> Ints:
        """Draw output lengths (count,), recorded ones where there are some."""
        table = recorded(self.file, read_table) if self.file else None
        if table is None:
            drawn = random.lognormal(np.log(self.median_tokens), self.sigma, count)
            return np.clip(drawn, 1, _LONGEST).astype(np.int64)
        tokens = table[list(self.columns)].sum(axis=1).to_numpy()
        if "reasoning_visible" in table:
            tokens = tokens[table["reasoning_visible"].to_numpy()]
        return random.choice(np.clip(tokens[tokens > 0], 1, _LONGEST).astype(np.int64), count)


_SHORT_TAU_B = {"PARS": 0.75, "listwise": 0.67, "pointwise": 0.64, "cross-model PARS": 0.65}
_LONG_TAU_B = {"PARS": 0.61, "listwise": 0.50, "pointwise": 0.30, "cross-model PARS": 0.51}
SHORT, LONG, TRAINED = "short outputs", "long outputs", "trained ranker"
SHORT_MODEL, LONG_MODEL = "short log-normal outputs", "long log-normal outputs"
LLAMA, GPT4 = "Llama-3-8B on AlpacaEval", "GPT-4 on AlpacaEval"
_ALPACA = "alpaca-vicuna7b/alpaca_vicuna7b_lengths.parquet"
_MISGUIDED = "reasoning/MisguidedAttention_lengths.parquet"
_ALPACA_EVAL = "alpaca-eval/alpaca_eval_tokens_wide.parquet"
WORKLOADS: Final = {
    SHORT_MODEL: Lengths(160, 1.1, _SHORT_TAU_B),
    LONG_MODEL: Lengths(1100, 0.75, _LONG_TAU_B),
    SHORT: Lengths(160, 1.1, _SHORT_TAU_B, _ALPACA, ("vicuna_tokens_t0_7",)),
    LONG: Lengths(1100, 0.75, _LONG_TAU_B, _MISGUIDED, ("reasoning_tokens", "answer_tokens")),
    LLAMA: Lengths(461, 0.9, _SHORT_TAU_B, _ALPACA_EVAL, ("Meta-Llama-3-8B-Instruct",)),
    GPT4: Lengths(290, 1.2, _SHORT_TAU_B, _ALPACA_EVAL, ("gpt4",)),
}
"""Medians are those of an earlier prototype; the spreads are fitted to its oracle's mean."""


def instance_of(seats: int = 256, num_gpus: int = 1) -> Instance:
    """Return the served model; the memory of `num_gpus` holds weights and KV."""
    blocks = kv_blocks(_GPU, MODELS[_MODEL], GPUS[_GPU], num_gpus=num_gpus)
    limits = {"max_num_seqs": seats, "max_tokens": _TOKEN_BUDGET, "kv_blocks": blocks}
    return Instance.preset(f"{_MODEL}@{_GPU}", **limits)


_MEAN, _P90 = "normalized_latency_s.mean", "normalized_latency_s.p90"
_SEATS = (256, 128, 64)
"""The default of vLLM first; the paper does not give its own."""


class ParsExperiment(Experiment):
    """Runs by workload and system."""

    once = ("scored", "saturation_per_s")

    def __init__(self, config: ReproduceConfig) -> None:
        super().__init__(config)
        served = instance_of()
        kv_tokens = served.kv_blocks * served.block_tokens
        self.longest_step_s = served.latency.step_s(256, kv_tokens, [(0, _TOKEN_BUDGET)])

    def measure(
        self,
        workload: str,
        system: str,
        *,
        guard: bool = True,
        load: float | None = None,
        seats: int = 256,
        num_gpus: int = 1,
        seed: int,
    ) -> dict[str, float]:
        """Return the summary of a run, and the longest wait for a first step."""
        requests = self._requests(workload, seed)
        if load is not None:
            rate_per_s = load * self.saturation_per_s(workload)
            arrival_s = poisson_arrivals_s(len(requests), rate_per_s=rate_per_s, seed=seed)
            requests = replace(requests, arrival_s=arrival_s)
        lengths = requests.output_tokens
        if system in ("FCFS", "Oracle"):
            requests = requests.with_scores(0.0 if system == "FCFS" else lengths)
        elif workload != TRAINED:
            tau_b = WORKLOADS[workload].tau_b[system]
            requests = requests.with_scores(synthetic_scores(lengths, tau_b=tau_b, seed=seed))
        policy = pars(starve_after_s=120.0 if guard else None)
        timeline = simulate(requests, policy, instance_of(seats, num_gpus), loop="compiled")
        longest_wait_s = float(np.max(timeline.scheduled_s - requests.arrival_s))
        return summarize(timeline).flat() | {"longest_wait_s": longest_wait_s}

    def _requests(self, workload: str, seed: int) -> Requests:
        if workload == TRAINED:
            order = np.random.default_rng((seed, ORDER_STREAM)).permutation(len(self.scored()))
            return replace(self.scored().take(order), arrival_s=np.zeros(len(order)))
        count = int(NUM_REQUESTS * self.config.scale)
        random = np.random.default_rng((seed, LENGTH_STREAM))
        prompt = random.lognormal(np.log(40), 0.8, count)
        return make_requests(
            prompt_tokens=np.clip(prompt, 1, 2048).astype(np.int64),
            output_tokens=WORKLOADS[workload].draw(count, random),
        )

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

    def saturation_per_s(self, workload: str) -> float:
        """Requests per second that FCFS serves from a full queue: the first half of a burst."""
        requests = self._requests(workload, 0)
        finished_s = simulate(requests, FCFS(), instance_of(), loop="compiled").finished_s
        return float(len(finished_s) / 2 / np.median(finished_s))

    def speed_up(self, workload: str, system: str, **setting: Any) -> tuple[float, float]:
        """Return latencies under FCFS / latencies under `system`: of the mean and of the P90."""
        fcfs, other = (
            [self.mean(name, workload, one, **setting) for name in (_MEAN, _P90)]
            for one in ("FCFS", system)
        )
        return fcfs[0] / other[0], fcfs[1] / other[1]

    def burst(
        self, lengths: str, statistic: str, least: float, most: float, seats: str
    ) -> dict[str, Any]:
        """Return the speed-up with 256 seats, or the best of three numbers.

        The case is "missed" where that with 256 seats is not from `least` to `most`.
        """
        number = ("mean", "P90").index(statistic)
        swept = [self.speed_up(lengths, "PARS", seats=each)[number] for each in _SEATS]
        ours = max(swept) if seats == "best" else swept[0]
        texts = [f"{value:.1f}x" for value in swept]
        found: dict[str, Any] = {
            "holds": least <= ours <= most,
            "ours": ours,
            "swept": " / ".join(texts),
        }
        if least <= swept[0] <= most:
            return found
        others = [
            "{:.1f}x / {:.1f}x".format(*self.speed_up(*each))
            for each in ((lengths, "Oracle"), (LLAMA, "PARS"), (GPT4, "PARS"))
        ]
        return found | {"case": "missed", "others": others}

    def prototype(
        self, lengths: str, system: str, mean: float, p90: float, guard: bool = True
    ) -> dict[str, Any]:
        """Return the speed-up, and the larger deviation from that of the prototype."""
        found = self.speed_up(lengths, system, guard=guard, num_gpus=2)
        deviations = [
            abs(ours / theirs - 1) for ours, theirs in zip(found, (mean, p90), strict=True)
        ]
        return {"value": max(deviations), "found": found}

    def order(
        self, lengths: str, load: float | None = None, others: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Return the latencies from the oracle and PARS to FCFS; the order of `others` is free.

        All requests arrive at once, or at a share of the rate at which FCFS saturates. The case is
        "calm" where FCFS has no queue, and "missed" where the order does not hold.
        """
        systems = ("Oracle", "PARS", *others, "FCFS")
        ms = {system: 1e3 * self.mean(_MEAN, lengths, system, load=load) for system in systems}
        oracle, own, *between, fcfs = ms.values()
        each = ", ".join(f"{system} {value:.1f}" for system, value in ms.items())
        found: dict[str, Any] = {"each": each, "at": "burst" if load is None else f"load {load:g}"}
        if lengths == TRAINED:
            found |= self.of_trained()
        longest_wait_s = self.values("longest_wait_s", lengths, "FCFS", load=load).max()
        # A longer wait for a first step than any step takes is a wait in the queue.
        if longest_wait_s <= self.longest_step_s:
            found |= {"wait_ms": 1e3 * longest_wait_s, "step_ms": 1e3 * self.longest_step_s}
            return found | {"case": "calm", "value": max(ms.values()) / min(ms.values()) - 1}
        gap = (own - oracle) / max(fcfs - oracle, 1e-9)
        holds = oracle < own < min([*between, fcfs]) and max([own, *between]) < fcfs
        found |= {"holds": holds, "value": gap}
        if holds and gap < 0.25:
            return found
        wait_ms = 1e3 * self.mean("queueing_s.mean", lengths, "FCFS", load=load)
        free_ms = [
            1e3 * self.mean(_MEAN, lengths, system, guard=False, load=load)
            for system in ("Oracle", "PARS", "FCFS")
        ]
        return found | {"case": "missed", "wait_ms": wait_ms, "free_ms": free_ms}

    def guard_cost(self) -> dict[str, Any]:
        """Return the speed-up with the guard, and without it."""
        guarded, free = (self.speed_up(LONG, "PARS", guard=guard)[0] for guard in (True, False))
        return {"value": guarded - free, "guarded": guarded, "free": free}

    def cross_model(self, lengths: str) -> dict[str, Any]:
        """Return the speed-up with the scores of another model's predictor."""
        own, cross = (self.speed_up(lengths, one)[0] for one in ("PARS", "cross-model PARS"))
        return {"value": cross, "own": own}

    def of_trained(self) -> dict[str, Any]:
        """Return tau-b and size of the trace in the order of a trained ranker."""
        requests = self.scored()
        tau_b = achieved_tau_b(requests.score, requests.output_tokens)
        return {"tau_b": tau_b, "count": len(requests)}

    def trained_burst(self) -> dict[str, Any]:
        """Return the best speed-up of a burst in the order of a trained ranker."""
        swept, best = (
            [self.speed_up(TRAINED, system, seats=seats) for seats in _SEATS]
            for system in ("PARS", "Oracle")
        )
        mean, p90 = (max(figures) for figures in zip(*swept, strict=True))
        each, oracle = (
            ", ".join(f"{mean:.1f}x / {p90:.1f}x" for mean, p90 in figures)
            for figures in (swept, best)
        )
        found = {"mean": mean, "p90": p90, "each": each, "oracle": oracle}
        return self.of_trained() | found | {"value": min(mean, p90)}
