"""PARS: a burst of 2,000 requests, and arrival rates up to saturation, at the paper's tau-b.

Llama-3-8B on an A100-40GB from first principles, 256 seats, budget 2,048 tokens. Short outputs are
those of Vicuna-7B on Alpaca, long ones those of reasoning models on MisguidedAttention, where the
data folder is there; else log-normal ones. Scores are synthetic, each with the tau-b that the paper
reports; latency is E2E / output tokens. The paper gives no number of seats, so "up to" is the best
of 256, 128 and 64. Rows that miss say what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from scheduler_adapters.commands.reproduce.figure import PaperFigure, ReproduceConfig
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.facts import GPUS, MODELS
from scheduler_adapters.simulator.latency.first_principles import kv_blocks
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.metrics import summarize
from scheduler_adapters.workload.arrivals import LENGTH_STREAM, ORDER_STREAM, poisson_arrivals_s
from scheduler_adapters.workload.data_folder import data_file
from scheduler_adapters.workload.requests import Floats, Ints, Requests, make_requests
from scheduler_adapters.workload.scores import (
    ConstantScores,
    OracleScores,
    SyntheticScores,
    achieved_tau_b,
    open_prompt_scorer,
)
from scheduler_adapters.workload.tables import read_table
from scheduler_adapters.workload.traces import read_trace
from scoring_service.errors import ConfigError, DataError

_MODEL, _GPU = "llama-3-8b", "a100-40g"
_TOKEN_BUDGET = 2048
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
        recorded = self.recorded()
        if recorded is not None:
            return random.choice(recorded, count)
        drawn = random.lognormal(np.log(self.median_tokens), self.sigma, count)
        return np.clip(drawn, 1, _LONGEST).astype(np.int64)

    def recorded(self) -> Ints | None:
        """All lengths that were recorded; None where there are none."""
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
TRAINED = "trained ranker"
SHORT_MODEL, LONG_MODEL = "short log-normal outputs", "long log-normal outputs"
LLAMA, GPT4 = "Llama-3-8B on AlpacaEval", "GPT-4 on AlpacaEval"
_ALPACA_EVAL = "alpaca-eval/alpaca_eval_tokens_wide.parquet"
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
    LLAMA: Lengths(
        median_tokens=461,
        sigma=0.9,
        tau_b=_SHORT_TAU_B,
        file=_ALPACA_EVAL,
        columns=("Meta-Llama-3-8B-Instruct",),
    ),
    GPT4: Lengths(
        median_tokens=290, sigma=1.2, tau_b=_SHORT_TAU_B, file=_ALPACA_EVAL, columns=("gpt4",)
    ),
}
"""Medians as an earlier prototype had them; the spreads are fitted to its oracle's mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What one run gave; seconds."""

    mean_s: float
    """E2E / output tokens, mean over requests."""
    p90_s: float
    wait_s: float
    """From arrival to the first step, mean over requests."""
    longest_wait_s: float


class ParsExperiment:
    """Runs systems and remembers what they gave; the memory of `num_gpus` holds weights and KV."""

    def __init__(self, config: ReproduceConfig, *, num_gpus: int = 1) -> None:
        self.config = config
        self.instance = replace(
            Instance.preset(f"{_MODEL}@{_GPU}", max_num_seqs=256, max_tokens=_TOKEN_BUDGET),
            kv_blocks=kv_blocks(_GPU, MODELS[_MODEL], GPUS[_GPU], num_gpus=num_gpus),
        )
        self.longest_step_s = self.instance.latency.step_s(
            self.instance.max_num_seqs,
            self.instance.kv_blocks * self.instance.block_tokens,
            [(0, _TOKEN_BUDGET)],
        )
        """At most; who waits longer for a first step was left waiting by one."""
        self.measure = cache(self._measure)
        self.scored = cache(self._scored)
        self.saturation_per_s = cache(self._saturation_per_s)

    def runs(
        self,
        workload: str,
        system: str,
        *,
        guard: bool = True,
        load: float | None = None,
        seats: int = 256,
    ) -> list[Measured]:
        """One run per seed."""
        return [
            self.measure(workload, system, guard, load, seats, seed)
            for seed in range(self.config.num_seeds)
        ]

    def latency(self, workload: str, system: str, **setting: Any) -> tuple[float, float]:
        """Mean and P90 of E2E / tokens in seconds, means over the seeds."""
        runs = self.runs(workload, system, **setting)
        return (
            float(np.mean([run.mean_s for run in runs])),
            float(np.mean([run.p90_s for run in runs])),
        )

    def _measure(
        self,
        workload: str,
        system: str,
        guard: bool,
        load: float | None,
        seats: int,
        seed: int,
    ) -> Measured:
        requests = self._requests(workload, seed)
        if load is not None:
            rate_per_s = load * self.saturation_per_s(workload)
            arrival_s = poisson_arrivals_s(len(requests), rate_per_s=rate_per_s, seed=seed)
            requests = replace(requests, arrival_s=arrival_s)
        requests = requests.with_scores(self._scores(requests, workload, system, seed))
        policy = pars(starve_after_s=120.0 if guard else None)
        instance = replace(self.instance, max_num_seqs=seats)
        timeline = simulate(requests, policy, instance, engine="compiled")
        latency_s = summarize(timeline).normalized_latency_s
        wait_s = timeline.scheduled_s - requests.arrival_s
        return Measured(
            mean_s=latency_s.mean,
            p90_s=latency_s.p90,
            wait_s=float(np.mean(wait_s)),
            longest_wait_s=float(np.max(wait_s)),
        )

    def _scores(self, requests: Requests, workload: str, system: str, seed: int) -> Floats:
        if system == "FCFS":
            return ConstantScores().scores(requests)
        if system == "Oracle":
            return OracleScores().scores(requests)
        if workload == TRAINED:
            return requests.score
        tau_b = WORKLOADS[workload].tau_b[system]
        return SyntheticScores(tau_b=tau_b, seed=seed).scores(requests)

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

    def _scored(self) -> Requests:
        """The trace that a trained ranker has scored, or scores now."""
        assert self.config.scored is not None
        scores = self.config.scores
        scorer = None if scores == "trace" else open_prompt_scorer(scores)
        requests = read_trace(self.config.scored, limit=NUM_REQUESTS, scorer=scorer)
        if np.isnan(requests.score).any():
            raise DataError(
                f"{int(np.isnan(requests.score).sum())} requests have no score; give a column "
                "'score', or --scores bundle:PATH and a column 'prompt'",
                path=self.config.scored,
            )
        return requests

    def _saturation_per_s(self, workload: str) -> float:
        """Requests per second that FCFS serves while there is always work: the first half."""
        requests = self._requests(workload, 0)
        finished_s = simulate(requests, FCFS(), self.instance, engine="compiled").finished_s
        return float(len(finished_s) / 2 / np.median(finished_s))


def figures(config: ReproduceConfig) -> list[PaperFigure]:
    """The rows of the paper's evaluation that a simulation can show."""
    experiment = ParsExperiment(config)
    return [
        *_burst_rows(experiment),
        *_anchor_rows(ParsExperiment(config, num_gpus=2)),
        *_order_rows(experiment),
        *_guard_rows(experiment),
        *_cross_model_rows(experiment),
        *([] if config.scored is None else trained_rows(config)),
    ]


def _speedup(
    experiment: ParsExperiment, workload: str, system: str, **setting: Any
) -> tuple[float, float]:
    """How many times lower than under FCFS: mean and P90."""
    fcfs = experiment.latency(workload, "FCFS", **setting)
    other = experiment.latency(workload, system, **setting)
    return fcfs[0] / other[0], fcfs[1] / other[1]


_SEATS = (256, 128, 64)
"""The engine's default first; the paper does not give its own."""
_BURSTS = (
    (SHORT, 0, "up to 7.7x", True, 4.0, np.inf),
    (SHORT, 1, "up to 8x", True, 4.0, np.inf),
    (LONG, 0, "> 2x", False, 1.7, 4.0),
    (LONG, 1, "> 2x", False, 1.7, np.inf),
)
"""Workload, mean or P90, what the paper has, whether that is its best, and the band around it."""


def _burst_rows(experiment: ParsExperiment) -> list[PaperFigure]:
    return [_burst_row(experiment, *burst) for burst in _BURSTS]


def _burst_row(
    experiment: ParsExperiment,
    workload: str,
    statistic: int,
    paper: str,
    is_best: bool,
    least: float,
    most: float,
) -> PaperFigure:
    swept = [_speedup(experiment, workload, "PARS", seats=seats)[statistic] for seats in _SEATS]
    shown = " / ".join(f"{value:.1f}x" for value in swept)
    ours = max(swept) if is_best else swept[0]
    band = f"{least:g}x or more" if most == np.inf else f"{least:g}x to {most:g}x"
    note = f"with 256 / 128 / 64 seats {shown}"
    if not least <= swept[0] <= most:
        note = f"{note}. {_why_small(experiment, workload)}"
    return PaperFigure(
        metric=f"{('mean', 'P90')[statistic]} latency per token, how many times lower",
        workload=f"burst of 2,000, {workload}",
        baseline="FCFS",
        paper=paper,
        ours=f"{ours:.1f}x",
        reproduced=bool(least <= ours <= most),
        criterion=band + (", the best of 256, 128 and 64 seats" if is_best else ", 256 seats"),
        pre_set=not is_best,
        note=note,
    )


def _why_small(experiment: ParsExperiment, workload: str) -> str:
    best = _speedup(experiment, workload, "Oracle")
    others = "; ".join(
        f"{name} {mean:.1f}x / {p90:.1f}x"
        for name in (LLAMA, GPT4)
        for mean, p90 in [_speedup(experiment, name, "PARS")]
    )
    return (
        f"With 256 no order can do it: the oracle comes to {best[0]:.1f}x / {best[1]:.1f}x (mean / "
        "P90), as these responses are short and end at 512 tokens. PARS on other lengths, same "
        f"tau-b and 256 seats: {others}"
    )


def _anchor_rows(experiment: ParsExperiment) -> list[PaperFigure]:
    """Figures of an earlier, independent prototype; the shape of its lengths was not recorded."""
    anchors = {
        (SHORT_MODEL, "PARS", True): (3.9, 5.6),
        (SHORT_MODEL, "Oracle", True): (4.4, 7.3),
        (LONG_MODEL, "PARS", True): (2.4, 2.6),
        (LONG_MODEL, "Oracle", True): (3.2, 3.5),
        (LONG_MODEL, "PARS", False): (3.0, 3.9),
    }
    return [_anchor_row(experiment, *anchor, wanted) for anchor, wanted in anchors.items()]


def _anchor_row(
    experiment: ParsExperiment,
    workload: str,
    system: str,
    guard: bool,
    figures: tuple[float, float],
) -> PaperFigure:
    mean, p90 = figures
    ours = _speedup(experiment, workload, system, guard=guard)
    return PaperFigure(
        metric=f"{system}, mean / P90 speed-up" + ("" if guard else " without the guard"),
        workload=f"burst of 2,000, {workload}",
        baseline="FCFS",
        paper=f"prototype {mean} / {p90}",
        ours=f"{ours[0]:.1f} / {ours[1]:.1f}",
        reproduced=abs(ours[0] / mean - 1) <= 0.15 and abs(ours[1] / p90 - 1) <= 0.15,
        criterion="both within 15% of an independent prototype",
        pre_set=False,
        note="the spread of the lengths was not recorded with the prototype's figures; it is "
        "fitted to its oracle's mean with the guard, the rest is prediction. Nor was its KV "
        "memory: this is that of the test bed's two GPUs; with one GPU's, long outputs missed "
        "twice: the oracle's P90 with 2.8, and PARS without the guard with 3.7 / 4.4",
    )


_LOADS = (None, 0.8, 1.0, 1.2)
"""None: all at once; else shares of the rate at which FCFS saturates."""
_TIE = 0.01
"""What counts as no difference, of mean latencies where there is no queue."""


def _order_rows(experiment: ParsExperiment) -> list[PaperFigure]:
    systems = ("Oracle", "PARS", "listwise", "pointwise", "FCFS")
    return [
        _order_row(experiment, workload, workload, load, systems)
        for workload in (SHORT, LONG)
        for load in _LOADS
    ]


def _order_row(
    experiment: ParsExperiment, workload: str, name: str, load: float | None, systems: Sequence[str]
) -> PaperFigure:
    """`systems` from the oracle and PARS to FCFS; those between the last two in any order."""
    ms = {system: 1e3 * experiment.latency(workload, system, load=load)[0] for system in systems}
    oracle, own, *between, fcfs = ms.values()
    row = PaperFigure(
        metric="mean latency, order Oracle < PARS < " + ("others < " if between else "") + "FCFS",
        workload=f"{name}, " + ("burst" if load is None else f"load {load:g}"),
        baseline="all",
        paper="holds; PARS within 200 ms/token of the oracle",
        ours=", ".join(f"{system} {value:.1f}" for system, value in ms.items()) + " ms/token",
        reproduced=False,
        criterion="",
    )
    longest_wait_s = max(run.longest_wait_s for run in experiment.runs(workload, "FCFS", load=load))
    if longest_wait_s <= experiment.longest_step_s:
        spread = max(ms.values()) / min(ms.values()) - 1
        return replace(
            row,
            ours=f"{row.ours}; all within {spread:.2%}",
            reproduced=spread <= _TIE,
            criterion=f"under FCFS nobody is left waiting: all within {_TIE:.0%} of each other",
            pre_set=False,
            note=f"under FCFS nobody waits more than {1e3 * longest_wait_s:.0f} ms for a first "
            f"step, and a step may take {1e3 * experiment.longest_step_s:.0f}: there is no queue "
            "to put in order",
        )
    gap = (own - oracle) / max(fcfs - oracle, 1e-9)
    in_order = oracle < own < min([*between, fcfs]) and max([own, *between]) < fcfs
    is_reproduced = in_order and gap < 0.25
    return replace(
        row,
        ours=f"{row.ours}; gap {gap:.0%} of FCFS to Oracle",
        reproduced=is_reproduced,
        criterion="order holds, gap below 25%",
        note="" if is_reproduced else _why_no_order(experiment, workload, load),
    )


def _why_no_order(experiment: ParsExperiment, workload: str, load: float | None) -> str:
    wait_ms = 1e3 * np.mean([run.wait_s for run in experiment.runs(workload, "FCFS", load=load)])
    own, best, worst = (
        1e3 * experiment.latency(workload, system, guard=False, load=load)[0]
        for system in ("PARS", "Oracle", "FCFS")
    )
    return (
        f"under FCFS a request waits {wait_ms:.0f} ms on average; the guard makes a queue of more "
        f"than 120 s FCFS; without it Oracle {best:.1f}, PARS {own:.1f}, FCFS {worst:.1f} ms/token"
    )


def _guard_rows(experiment: ParsExperiment) -> list[PaperFigure]:
    workload = LONG
    with_guard = _speedup(experiment, workload, "PARS")[0]
    without = _speedup(experiment, workload, "PARS", guard=False)[0]
    return [
        PaperFigure(
            metric="what the starvation guard costs: mean speed-up with and without it",
            workload=f"burst of 2,000, {workload}",
            baseline="FCFS",
            paper="not reported; the boost turns a long queue into FCFS",
            ours=f"{with_guard:.1f}x with, {without:.1f}x without",
            reproduced=with_guard < without,
            criterion="lower with the guard",
        )
    ]


def _cross_model_rows(experiment: ParsExperiment) -> list[PaperFigure]:
    return [
        PaperFigure(
            metric="scores of another model's predictor: mean speed-up",
            workload=f"burst of 2,000, {workload}",
            baseline="FCFS",
            paper="> 2x, a little behind PARS",
            ours=f"{cross:.1f}x (PARS {own:.1f}x)",
            reproduced=cross > 1.8,
            criterion="above 1.8x with tau-b .1 lower",
        )
        for workload in (SHORT, LONG)
        for cross, own in [
            (
                _speedup(experiment, workload, "cross-model PARS")[0],
                _speedup(experiment, workload, "PARS")[0],
            )
        ]
    ]


def trained_rows(config: ReproduceConfig) -> list[PaperFigure]:
    """The burst and the rates again, in the order that a trained ranker gives `config.scored`.

    Raises:
        DataError: the trace cannot be read, or has requests without a score.
    """
    experiment = ParsExperiment(config)
    requests = experiment.scored()
    tau_b = achieved_tau_b(requests.score, requests.output_tokens)
    name = f"trained ranker, tau-b {tau_b:.3f}, {len(requests)} prompts"
    swept = [_speedup(experiment, TRAINED, "PARS", seats=seats) for seats in _SEATS]
    best = [_speedup(experiment, TRAINED, "Oracle", seats=seats) for seats in _SEATS]
    mean, p90 = (max(figures) for figures in zip(*swept, strict=True))
    size = PaperFigure(
        metric="mean / P90 latency per token, how many times lower",
        workload=f"burst, {name}",
        baseline="FCFS",
        paper="up to 7.7x / 8x, at tau-b .75",
        ours=f"{mean:.1f}x / {p90:.1f}x",
        reproduced=min(mean, p90) >= 4,
        criterion="4x or more, the best of 256, 128 and 64 seats",
        pre_set=False,
        note=f"with 256 / 128 / 64 seats {_swept(swept)}; the oracle {_swept(best)}",
    )
    systems = ("Oracle", "PARS", "FCFS")
    return [size, *(_order_row(experiment, TRAINED, name, load, systems) for load in _LOADS)]


def _swept(figures: Sequence[tuple[float, float]]) -> str:
    return ", ".join(f"{mean:.1f}x / {p90:.1f}x" for mean, p90 in figures)
