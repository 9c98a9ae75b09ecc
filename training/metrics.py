"""How good a ranking is. NumPy in, float out; NaN where a figure is undefined."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import kendalltau

from training.pairs import relative_gap


def tau_b(scores: ArrayLike, lengths: ArrayLike) -> float:
    """Kendall's tau-b between scores and true lengths, in [-1, 1]; 1 is the right order.

    NaN where it is undefined: fewer than two items, or all scores or all lengths equal.
    """
    x, y = np.asarray(scores), np.asarray(lengths)
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(kendalltau(x, y).statistic)


def tau_b_ci(
    scores: ArrayLike, lengths: ArrayLike, *, resamples: int = 500, seed: int = 0
) -> tuple[float, float]:
    """95% percentile bootstrap interval of `tau_b` over prompts."""
    x, y = np.asarray(scores), np.asarray(lengths)
    draws = [tau_b(x[i], y[i]) for i in _resamples(len(x), resamples, seed)]
    return _percentiles(draws)


def tau_b_difference_ci(
    scores: ArrayLike, others: ArrayLike, lengths: ArrayLike, *, resamples: int = 500, seed: int = 0
) -> tuple[float, float]:
    """95% paired bootstrap interval of tau_b(scores) - tau_b(others) on the same prompts."""
    x, z, y = np.asarray(scores), np.asarray(others), np.asarray(lengths)
    draws = [tau_b(x[i], y[i]) - tau_b(z[i], y[i]) for i in _resamples(len(x), resamples, seed)]
    return _percentiles(draws)


def pair_accuracy(scores: ArrayLike, lengths: ArrayLike, *, delta: float = 0.0) -> float:
    """Share of pairs in the right order, of those whose relative gap is > 0 and >= delta.

    Equal scores count half. NaN where no pair qualifies.
    """
    x = np.asarray(scores, np.float64)
    y = np.asarray(lengths, np.float64)
    right, total = 0.0, 0
    for i in range(len(x) - 1):  # Row by row: the full matrix of 10,000 prompts would take 800 MB.
        gap = y[i + 1 :] - y[i]
        keep = (gap != 0) & (relative_gap(y[i + 1 :], y[i : i + 1]) >= delta)
        agreement = np.sign(x[i + 1 :] - x[i])[keep] * np.sign(gap)[keep]
        right += float(np.sum((agreement + 1) / 2))
        total += int(np.sum(keep))
    return right / total if total else math.nan


def _resamples(n: int, resamples: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(n, size=(resamples, n))


def _percentiles(draws: list[float]) -> tuple[float, float]:
    if np.all(np.isnan(draws)):
        return math.nan, math.nan
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return float(low), float(high)
