"""PARS: a burst of 2,000 requests, and arrival rates up to saturation, at the paper's tau-b.

Llama-3-8B on an A100-40GB from first principles, 256 seats, budget 2,048 tokens. Short outputs are
those of Vicuna-7B on Alpaca, long ones those of reasoning models on MisguidedAttention, where the
data folder is there; else log-normal ones. Scores are synthetic, each with the tau-b that the paper
reports; latency is E2E / output tokens. The paper gives no number of seats, so "up to" is the best
of 256, 128 and 64. Rows that miss say what was measured.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_adapters.commands.reproduce import PaperFigure, ReproduceConfig
from scheduler_adapters.papers.pars_runs import (
    GPT4,
    LLAMA,
    LONG,
    LONG_MODEL,
    SHORT,
    SHORT_MODEL,
    TRAINED,
    ParsExperiment,
)
from scheduler_adapters.workload.score_sources import achieved_tau_b


def figures(config: ReproduceConfig) -> list[PaperFigure]:
    """The rows of the paper's evaluation that a simulation can show."""
    experiment, two_gpus = ParsExperiment(config), ParsExperiment(config, num_gpus=2)
    systems = ("Oracle", "PARS", "listwise", "pointwise", "FCFS")
    return [
        *(_burst_row(experiment, burst) for burst in _BURSTS),
        *(_anchor_row(two_gpus, *anchor) for anchor in _ANCHORS),
        *(
            _order_row(experiment, workload, workload, load, systems)
            for workload in (SHORT, LONG)
            for load in _LOADS
        ),
        _guard_row(experiment),
        *(_cross_model_row(experiment, workload) for workload in (SHORT, LONG)),
        *([] if config.scored is None else trained_rows(config)),
    ]


def _speedup(
    experiment: ParsExperiment, workload: str, system: str, **setting: Any
) -> tuple[float, float]:
    """Return latencies under FCFS / latencies under `system`: of the mean and of the P90."""
    fcfs = experiment.latency(workload, "FCFS", **setting)
    other = experiment.latency(workload, system, **setting)
    return fcfs[0] / other[0], fcfs[1] / other[1]


_SEATS = (256, 128, 64)
"""vLLM's default first; the paper does not give its own."""
_BURSTS = (
    (SHORT, 0, "up to 7.7x", True, 4.0, np.inf),
    (SHORT, 1, "up to 8x", True, 4.0, np.inf),
    (LONG, 0, "> 2x", False, 1.7, 4.0),
    (LONG, 1, "> 2x", False, 1.7, np.inf),
)
"""Workload, mean or P90, the paper's figure, whether it is its best, and the band around it."""


def _burst_row(
    experiment: ParsExperiment, burst: tuple[str, int, str, bool, float, float]
) -> PaperFigure:
    workload, statistic, paper, is_best, least, most = burst
    swept = [_speedup(experiment, workload, "PARS", seats=seats)[statistic] for seats in _SEATS]
    ours = max(swept) if is_best else swept[0]
    band = f"{least:g}x or more" if most == np.inf else f"{least:g}x to {most:g}x"
    note = "with 256 / 128 / 64 seats " + " / ".join(f"{value:.1f}x" for value in swept)
    if not least <= swept[0] <= most:
        note = f"{note}. {_why_small(experiment, workload)}"
    return PaperFigure(
        metric=f"{('mean', 'P90')[statistic]} latency per token, how many times lower",
        workload=f"burst of 2,000, {workload}",
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


_ANCHORS = (
    (SHORT_MODEL, "PARS", True, 3.9, 5.6),
    (SHORT_MODEL, "Oracle", True, 4.4, 7.3),
    (LONG_MODEL, "PARS", True, 2.4, 2.6),
    (LONG_MODEL, "Oracle", True, 3.2, 3.5),
    (LONG_MODEL, "PARS", False, 3.0, 3.9),
)
"""Workload, system, guard, and mean and P90 of an earlier, independent prototype; the shape of its
lengths was not recorded."""


def _anchor_row(
    experiment: ParsExperiment, workload: str, system: str, guard: bool, mean: float, p90: float
) -> PaperFigure:
    ours = _speedup(experiment, workload, system, guard=guard)
    return PaperFigure(
        metric=f"{system}, mean / P90 speed-up" + ("" if guard else " without the guard"),
        workload=f"burst of 2,000, {workload}",
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
"""Largest difference of mean latencies that counts as none, where there is no queue."""


def _order_row(
    experiment: ParsExperiment, workload: str, name: str, load: float | None, systems: Sequence[str]
) -> PaperFigure:
    """`systems` from the oracle and PARS to FCFS; those between the last two in any order."""
    ms = {system: 1e3 * experiment.latency(workload, system, load=load)[0] for system in systems}
    oracle, own, *between, fcfs = ms.values()
    longest_wait_s = max(run.longest_wait_s for run in experiment.runs(workload, "FCFS", load=load))
    is_queued = longest_wait_s > experiment.longest_step_s
    if is_queued:
        gap = (own - oracle) / max(fcfs - oracle, 1e-9)
        in_order = oracle < own < min([*between, fcfs]) and max([own, *between]) < fcfs
        found, is_reproduced = f"gap {gap:.0%} of FCFS to Oracle", in_order and gap < 0.25
        criterion = "order holds, gap below 25%"
        note = "" if is_reproduced else _why_no_order(experiment, workload, load)
    else:
        spread = max(ms.values()) / min(ms.values()) - 1
        found, is_reproduced = f"all within {spread:.2%}", spread <= _TIE
        criterion = f"under FCFS nobody is left waiting: all within {_TIE:.0%} of each other"
        note = (
            f"under FCFS nobody waits more than {1e3 * longest_wait_s:.0f} ms for a first step, "
            f"and a step may take {1e3 * experiment.longest_step_s:.0f}: there is no queue to put "
            "in order"
        )
    each = ", ".join(f"{system} {value:.1f}" for system, value in ms.items())
    return PaperFigure(
        metric="mean latency, order Oracle < PARS < " + ("others < " if between else "") + "FCFS",
        workload=f"{name}, " + ("burst" if load is None else f"load {load:g}"),
        baseline="all",
        paper="holds; PARS within 200 ms/token of the oracle",
        ours=f"{each} ms/token; {found}",
        reproduced=is_reproduced,
        criterion=criterion,
        pre_set=is_queued,
        note=note,
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


def _guard_row(experiment: ParsExperiment) -> PaperFigure:
    with_guard, without = (_speedup(experiment, LONG, "PARS", guard=g)[0] for g in (True, False))
    return PaperFigure(
        metric="what the starvation guard costs: mean speed-up with and without it",
        workload=f"burst of 2,000, {LONG}",
        paper="not reported; the boost turns a long queue into FCFS",
        ours=f"{with_guard:.1f}x with, {without:.1f}x without",
        reproduced=with_guard < without,
        criterion="lower with the guard",
    )


def _cross_model_row(experiment: ParsExperiment, workload: str) -> PaperFigure:
    own, cross = (_speedup(experiment, workload, s)[0] for s in ("PARS", "cross-model PARS"))
    return PaperFigure(
        metric="scores of another model's predictor: mean speed-up",
        workload=f"burst of 2,000, {workload}",
        paper="> 2x, a little behind PARS",
        ours=f"{cross:.1f}x (PARS {own:.1f}x)",
        reproduced=cross > 1.8,
        criterion="above 1.8x with tau-b .1 lower",
    )


def trained_rows(config: ReproduceConfig) -> list[PaperFigure]:
    """The burst and the rates again, in the order that a trained ranker gives `config.scored`."""
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
