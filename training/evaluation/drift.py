"""Whether a ranker still orders what it is asked to order. Pure functions of scores and lengths.

Rows are in the order they were logged; a window is so many consecutive rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scoring_service.errors import DataError
from training.evaluation.calibration import coverage
from training.evaluation.metrics import tau_b, tau_b_ci

MIN_ROWS: Final = 20
MAX_WINDOWS: Final = 48
_STEPS_PER_WINDOW: Final = 4
_RESAMPLES: Final = 200
_TOLERANCE: Final = 0.03
"""Coverage may be off by this much, beside chance, before it is called wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Consecutive rows of a log, and how well they were ranked."""

    first_row: int
    end_row: int
    """The row after the last."""
    tau_b: float
    tau_b_ci: tuple[float, float]
    coverage: Mapping[str, float]
    """Quantile -> share of lengths at or below it; empty where the bundle is not calibrated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the newest window says."""

    below_gate: bool
    certain: bool
    """Whether the whole 95% interval lies on that side of the gate."""
    reason: str


def window_bounds(num_rows: int, window: int) -> list[tuple[int, int]]:
    """(first, end) of the newest windows in order, each a quarter of a window after the last.

    The last one ends with the log. A log shorter than a window is one window.
    """
    step = max(1, window // _STEPS_PER_WINDOW)
    ends = range(num_rows, max(window, 1) - 1, -step)[:MAX_WINDOWS]
    return [(end - window, end) for end in reversed(ends)] or [(0, num_rows)]


def measure_window(
    scores: NDArray[np.float64],
    lengths: NDArray[np.float64],
    calibration: Mapping[str, Any] | None,
    *,
    first_row: int,
) -> Window:
    """tau_b with its 95% bootstrap interval, and the coverage of the quantiles.

    Args:
        scores: of the window's prompts, higher = longer. Shape (N,).
        lengths: observed, in tokens. Shape (N,).
        calibration: entry of the manifest for the model that responded.
        first_row: where the window begins in the log.
    """
    return Window(
        first_row=first_row,
        end_row=first_row + len(scores),
        tau_b=tau_b(scores, lengths),
        tau_b_ci=tau_b_ci(scores, lengths, resamples=_RESAMPLES),
        coverage={} if calibration is None else coverage(calibration, scores, lengths),
    )


def judge(window: Window, gate: float) -> Verdict:
    """Whether tau_b of the window is below the gate, and whether that can be chance.

    Raises:
        DataError: tau_b is undefined there.
    """
    if math.isnan(window.tau_b):
        raise DataError(
            "tau_b of the newest rows is undefined, as all their lengths or all their scores are "
            "equal; give a longer --window"
        )
    low, high = window.tau_b_ci
    figures = f"tau_b {window.tau_b:.3f} (95% {low:.3f} to {high:.3f})"
    if window.tau_b >= gate:
        return Verdict(
            below_gate=False,
            certain=low >= gate,
            reason=f"{figures} holds its gate of {gate:.3f}",
        )
    if high < gate:
        advice = "train again on these logs"
        return Verdict(
            below_gate=True,
            certain=True,
            reason=f"{figures} is below its gate of {gate:.3f}: {advice}",
        )
    advice = "this may be chance, give more rows or a longer --window"
    return Verdict(
        below_gate=True,
        certain=False,
        reason=f"{figures} is below its gate of {gate:.3f}, but its interval is not: {advice}",
    )


def miscovered(window: Window) -> list[str]:
    """The quantiles whose coverage is off by more than 3 points and chance together."""
    rows = window.end_row - window.first_row

    def allowed(quantile: float) -> float:
        return _TOLERANCE + 1.96 * math.sqrt(quantile * (1 - quantile) / rows)

    return [
        name
        for name, share in window.coverage.items()
        if abs(share - float(name)) > allowed(float(name))
    ]
