"""Drift: tau_b and coverage over windows of a log, and the verdict on the newest. Pure functions.

Rows are in the order of the log; a window is a number of consecutive rows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.agreement import tau_b
from lengthwise.errors import DataError
from training.evaluation.calibration import coverage
from training.evaluation.ranking_metrics import tau_b_ci

MAX_WINDOWS: Final = 48
_STEPS_PER_WINDOW: Final = 4
_RESAMPLES: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Consecutive rows of a log, with tau_b and coverage."""

    first_row: int
    end_row: int
    """The row after the last."""
    tau_b: float
    tau_b_ci: tuple[float, float]
    coverage: Mapping[str, float]
    """Quantile -> share of lengths at or below it; empty without calibration."""


def window_bounds(num_rows: int, window: int) -> list[tuple[int, int]]:
    """Return (first, end) of the newest windows in order, a quarter of a window apart.

    The last window ends with the log. A log shorter than a window is one window.
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
    """Return tau_b with its 95% bootstrap interval, and the coverage of the quantiles.

    `scores` and `lengths` (tokens) are those of the rows, shape (N,); `calibration` is the
    manifest's entry of the model that responded.
    """
    return Window(
        first_row=first_row,
        end_row=first_row + len(scores),
        tau_b=tau_b(scores, lengths),
        tau_b_ci=tau_b_ci(scores, lengths, resamples=_RESAMPLES),
        coverage={} if calibration is None else coverage(calibration, scores, lengths),
    )


def judge(window: Window, gate: float) -> dict[str, Any]:
    """Return the `verdict` below_gate or holds, whether it is `certain`, and the `reason`.

    It is certain if the whole 95% interval of tau_b lies on that side of the gate.
    """
    if math.isnan(window.tau_b):
        raise DataError(
            "tau_b of the newest rows is undefined, as all their lengths or all their scores are "
            "equal; give a longer --window"
        )
    low, high = window.tau_b_ci
    below = window.tau_b < gate
    certain = high < gate if below else low >= gate
    verb, advice = ("is below", ": train again on these logs") if below else ("holds", "")
    if below and not certain:
        advice = (
            ", but its interval is not: this may be chance, give more rows or a longer --window"
        )
    figures = f"tau_b {window.tau_b:.3f} (95% {low:.3f} to {high:.3f})"
    return {
        "verdict": "below_gate" if below else "holds",
        "certain": certain,
        "reason": f"{figures} {verb} its gate of {gate:.3f}{advice}",
    }
