"""Errors of a simulated cluster against the record of a real one, figure by figure."""

from collections.abc import Sequence
from math import isfinite
from typing import Final, NamedTuple

import numpy as np

from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.timeline.timeline import Timeline

_TIMES: Final = ("ttft_s", "first_answer_s", "ttfat_s", "tpot_s", "e2e_s")
_PARTS: Final = ("mean", "p50", "p90", "p99")
_RATES: Final = ("makespan_s", "output_tokens_per_s", "qoe.mean", "qoe_violations")


class FigureError(NamedTuple):
    """One figure of both runs."""

    figure: str
    measured: float
    simulated: float
    error: float
    """simulated / measured - 1; NaN if the measured figure is 0."""


def figure_errors(measured: Timeline, simulated: Timeline) -> Sequence[FigureError]:
    """Return the latencies, rates, moves and the shares of instances of two runs side by side.

    Shares are sorted, as a real replica has no number. Figures that a run lacks are left out.
    """
    both = [_figures(measured), _figures(simulated)]
    rows = [(name, number, both[1].get(name, np.nan)) for name, number in both[0].items()]
    return [
        FigureError(name, real, ours, ours / real - 1 if real else np.nan)
        for name, real, ours in rows
        if isfinite(real) and isfinite(ours)
    ]


def _figures(timeline: Timeline) -> dict[str, float]:
    flat = summarize(timeline).flat()
    names = [f"{time}.{part}" for time in _TIMES for part in _PARTS]
    counts = np.sort(np.bincount(timeline.instance))[::-1] / max(1, len(timeline.instance))
    shares = {f"share of instance {n}": share for n, share in enumerate(counts.tolist(), 1)}
    moves = {"moves per request": float(timeline.migrations.mean())}
    return {name: flat[name] for name in (*names, *_RATES)} | moves | shares
