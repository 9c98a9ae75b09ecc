"""PARS: a burst of 2,000 requests, and arrival rates up to saturation, at the paper's tau-b.

Llama-3-8B on an A100-40GB from first principles, 256 seats, budget 2,048 tokens. With the data
folder, short outputs are those of Vicuna-7B on Alpaca, and long ones those of reasoning models on
MisguidedAttention. Without it they are log-normal. Scores are synthetic, each with the tau-b that
the paper reports; latency is E2E / output tokens. The paper gives no number of seats, so "up to"
is the best of 256, 128 and 64. The note of a row that fails has further measurements.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

import numpy as np

from lengthwise.errors import DataError
from scheduler_adapters.papers.rows import PaperFigure, row
from scheduler_adapters.papers.runs import Experiment, ReproduceConfig, recorded
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.reporting.page import Section
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


_MEAN, _P90 = "normalized_latency_s.mean", "normalized_latency_s.p90"
_SEATS = (256, 128, 64)
"""The default of vLLM first; the paper does not give its own."""


def burst_rows(e: ParsExperiment) -> Iterator[PaperFigure]:
    """Yield the speed-up of a burst, and that of an earlier, independent prototype."""
    best = "4x or more, the best of 256, 128 and 64 seats"
    for workload, statistic, paper, criterion, least, most in (
        (SHORT, 0, "up to 7.7x", best, 4.0, inf),
        (SHORT, 1, "up to 8x", best, 4.0, inf),
        (LONG, 0, "> 2x", "1.7x to 4x, 256 seats", 1.7, 4.0),
        (LONG, 1, "> 2x", "1.7x or more, 256 seats", 1.7, inf),
    ):
        swept = [e.speed_up(workload, "PARS", seats=seats)[statistic] for seats in _SEATS]
        ours = max(swept) if criterion == best else swept[0]
        note = "with 256 / 128 / 64 seats " + " / ".join(f"{value:.1f}x" for value in swept)
        if not least <= swept[0] <= most:
            oracle, *others = (
                "{:.1f}x / {:.1f}x".format(*e.speed_up(*each))
                for each in ((workload, "Oracle"), (LLAMA, "PARS"), (GPT4, "PARS"))
            )
            note += (
                f". With 256 no order can do it: the oracle comes to {oracle} (mean / P90), as "
                "these responses are short and end at 512 tokens. PARS on other lengths, same "
                f"tau-b and 256 seats: {LLAMA} {others[0]}; {GPT4} {others[1]}"
            )
        yield row(
            f"{('mean', 'P90')[statistic]} latency per token, how many times lower | "
            f"burst of 2,000, {workload} | FCFS",
            paper,
            f"{ours:.1f}x",
            least <= ours <= most,
            criterion,
            pre_set=criterion != best,
            note=note,
        )
    for workload, system, guard, mean, p90 in (
        (SHORT_MODEL, "PARS", True, 3.9, 5.6),
        (SHORT_MODEL, "Oracle", True, 4.4, 7.3),
        (LONG_MODEL, "PARS", True, 2.4, 2.6),
        (LONG_MODEL, "Oracle", True, 3.2, 3.5),
        (LONG_MODEL, "PARS", False, 3.0, 3.9),
    ):
        found = e.speed_up(workload, system, guard=guard, num_gpus=2)
        yield row(
            f"{system}, mean / P90 speed-up{'' if guard else ' without the guard'} | "
            f"burst of 2,000, {workload} | FCFS",
            f"prototype {mean} / {p90}",
            f"{found[0]:.1f} / {found[1]:.1f}",
            abs(found[0] / mean - 1) <= 0.15 and abs(found[1] / p90 - 1) <= 0.15,
            "both within 15% of an independent prototype",
            pre_set=False,
            note="the spread of the lengths was not recorded with the prototype's figures; it is "
            "fitted to its oracle's mean with the guard, the rest is prediction. Nor was its KV "
            "memory: this is that of the test bed's two GPUs; with one GPU's, long outputs missed "
            "twice: the oracle's P90 with 2.8, and PARS without the guard with 3.7 / 4.4",
        )


def order_rows(
    e: ParsExperiment, workload: str, name: str, systems: Sequence[str]
) -> Iterator[PaperFigure]:
    """Yield the order of `systems`, from the oracle and PARS to FCFS; those between are free."""
    # All at once, then shares of the rate at which FCFS saturates.
    for load in (None, 0.8, 1.0, 1.2):
        ms = {system: 1e3 * e.mean(_MEAN, workload, system, load=load) for system in systems}
        oracle, own, *between, fcfs = ms.values()
        longest_wait_s = e.values("longest_wait_s", workload, "FCFS", load=load).max()
        # A longer wait for a first step than any step takes is a wait in the queue.
        is_queued = bool(longest_wait_s > e.longest_step_s)
        if is_queued:
            gap = (own - oracle) / max(fcfs - oracle, 1e-9)
            in_order = oracle < own < min([*between, fcfs]) and max([own, *between]) < fcfs
            found, is_reproduced = f"gap {gap:.0%} of FCFS to Oracle", in_order and gap < 0.25
            criterion = "order holds, gap below 25%"
            note = "" if is_reproduced else _without_guard(e, workload, load)
        else:
            spread = max(ms.values()) / min(ms.values()) - 1
            found, is_reproduced = f"all within {spread:.2%}", spread <= 0.01
            criterion = "under FCFS nobody is left waiting: all within 1% of each other"
            note = (
                f"under FCFS no request waits more than {1e3 * longest_wait_s:.0f} ms for a first "
                f"step, and a step may take {1e3 * e.longest_step_s:.0f}: there is no queue to put "
                "in order"
            )
        each = ", ".join(f"{system} {value:.1f}" for system, value in ms.items())
        yield row(
            f"mean latency, order Oracle < PARS < {'others < ' if between else ''}FCFS | "
            f"{name}, {'burst' if load is None else f'load {load:g}'} | all",
            "holds; PARS within 200 ms/token of the oracle",
            f"{each} ms/token; {found}",
            is_reproduced,
            criterion,
            pre_set=is_queued,
            note=note,
        )


def _without_guard(e: ParsExperiment, workload: str, load: float | None) -> str:
    wait_ms = 1e3 * e.mean("queueing_s.mean", workload, "FCFS", load=load)
    best, own, worst = (
        1e3 * e.mean(_MEAN, workload, system, guard=False, load=load)
        for system in ("Oracle", "PARS", "FCFS")
    )
    return (
        f"under FCFS a request waits {wait_ms:.0f} ms on average; the guard makes a queue of more "
        f"than 120 s FCFS; without it Oracle {best:.1f}, PARS {own:.1f}, FCFS {worst:.1f} ms/token"
    )


def variant_rows(e: ParsExperiment) -> Iterator[PaperFigure]:
    """Yield PARS without its guard, and with the scores of another model's predictor."""
    guarded, free = (e.speed_up(LONG, "PARS", guard=guard)[0] for guard in (True, False))
    yield row(
        "what the starvation guard costs: mean speed-up with and without it | "
        "burst of 2,000, long outputs | FCFS",
        "not reported; the boost turns a long queue into FCFS",
        f"{guarded:.1f}x with, {free:.1f}x without",
        guarded < free,
        "lower with the guard",
    )
    for workload in (SHORT, LONG):
        own, cross = (e.speed_up(workload, name)[0] for name in ("PARS", "cross-model PARS"))
        yield row(
            "scores of another model's predictor: mean speed-up | "
            f"burst of 2,000, {workload} | FCFS",
            "> 2x, a little behind PARS",
            f"{cross:.1f}x (PARS {own:.1f}x)",
            cross > 1.8,
            "above 1.8x with tau-b .1 lower",
        )


def trained_rows(e: ParsExperiment) -> Iterator[PaperFigure]:
    """Yield the burst and the rates again, in the order that a trained ranker gives a trace."""
    requests = e.scored()
    tau_b = achieved_tau_b(requests.score, requests.output_tokens)
    name = f"trained ranker, tau-b {tau_b:.3f}, {len(requests)} prompts"
    swept, best = (
        [e.speed_up(TRAINED, system, seats=seats) for seats in _SEATS]
        for system in ("PARS", "Oracle")
    )
    mean, p90 = (max(figures) for figures in zip(*swept, strict=True))
    each, oracle = (
        ", ".join(f"{mean:.1f}x / {p90:.1f}x" for mean, p90 in figures) for figures in (swept, best)
    )
    yield row(
        f"mean / P90 latency per token, how many times lower | burst, {name} | FCFS",
        "up to 7.7x / 8x, at tau-b .75",
        f"{mean:.1f}x / {p90:.1f}x",
        min(mean, p90) >= 4,
        "4x or more, the best of 256, 128 and 64 seats",
        pre_set=False,
        note=f"with 256 / 128 / 64 seats {each}; the oracle {oracle}",
    )
    yield from order_rows(e, TRAINED, name, ("Oracle", "PARS", "FCFS"))


def reproduce(config: ReproduceConfig) -> tuple[list[PaperFigure], list[Section]]:
    """Measure the rows of the paper's evaluation that a simulation can show."""
    e, systems = ParsExperiment(config), ("Oracle", "PARS", "listwise", "pointwise", "FCFS")
    rows = [
        *burst_rows(e),
        *order_rows(e, SHORT, SHORT, systems),
        *order_rows(e, LONG, LONG, systems),
        *variant_rows(e),
        *(trained_rows(e) if config.scored else ()),
    ]
    return rows, []
