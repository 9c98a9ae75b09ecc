"""How good a ranking is. NumPy in, float out; NaN where a figure is undefined."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import kendalltau

from training.data.pairs import relative_gap


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


def ceiling(samples: Sequence[Sequence[int]]) -> float:
    """tau_b between the first sample of each prompt and another: how well a model predicts itself.

    `samples` holds the repeated lengths of each prompt; the mean over the second, third, ... sample
    of every prompt that has one. NaN where fewer than two prompts have repeats.
    """
    taus = []
    for number in range(1, max(map(len, samples), default=0)):
        pairs = [(lengths[0], lengths[number]) for lengths in samples if len(lengths) > number]
        first, other = zip(*pairs, strict=True)
        taus.append(tau_b(other, first))
    return float(np.mean(taus)) if taus else math.nan


def grouped_tau_b(scores: ArrayLike, lengths: ArrayLike, groups: Sequence[str]) -> float:
    """Mean of tau_b within each group, weighted by its size; NaN where there is one group only.

    On a mix of tasks the whole-set tau_b mostly says that tasks differ; this does not.
    """
    x, y, names = np.asarray(scores), np.asarray(lengths), np.asarray(groups)
    members = [names == name for name in np.unique(names)]
    if len(members) < 2:
        return math.nan
    taus = np.array([tau_b(x[group], y[group]) for group in members])
    sizes = np.array([group.sum() for group in members])
    defined = ~np.isnan(taus)
    return float(np.average(taus[defined], weights=sizes[defined])) if defined.any() else math.nan


def _resamples(n: int, resamples: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(n, size=(resamples, n))


def _percentiles(draws: list[float]) -> tuple[float, float]:
    if np.all(np.isnan(draws)):
        return math.nan, math.nan
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return float(low), float(high)
