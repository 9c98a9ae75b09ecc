"""Metrics of a ranking. NumPy in, float out; NaN for an undefined figure."""

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lengthwise.agreement import tau_b

MIN_ROWS: Final = 20
"""A bootstrap of fewer rows gives too narrow an interval."""


def tau_b_ci(scores: ArrayLike, lengths: ArrayLike) -> tuple[float, float]:
    """Return the 95% percentile bootstrap interval of tau_b over prompts."""
    x, y = np.asarray(scores), np.asarray(lengths)
    return _interval(lambda i: tau_b(x[i], y[i]), len(x))


def tau_b_difference_ci(
    scores: ArrayLike, others: ArrayLike, lengths: ArrayLike
) -> tuple[float, float]:
    """Return the 95% paired bootstrap interval of tau_b(scores) - tau_b(others)."""
    x, z, y = np.asarray(scores), np.asarray(others), np.asarray(lengths)
    return _interval(lambda i: tau_b(x[i], y[i]) - tau_b(z[i], y[i]), len(x))


def ceiling(samples: Sequence[Sequence[int]], most: int | None = None) -> float:
    """Return tau_b between the first answer's length and the geometric mean of further answers'.

    `samples` holds the lengths of repeated answers to each prompt. Of the further ones `most` are
    taken (None: all): the mean of all is the best known guess, and a ceiling of rankers; with 1 it
    is the model's second answer. NaN if fewer than two prompts have repeats.
    """
    repeated = [lengths for lengths in samples if len(lengths) > 1]
    means = [np.log(lengths[1:][:most]).mean() for lengths in repeated]
    return tau_b(means, [lengths[0] for lengths in repeated]) if repeated else math.nan


def grouped_tau_b(scores: ArrayLike, lengths: ArrayLike, groups: Sequence[str]) -> float:
    """Return the mean of tau_b within each group, weighted by size; NaN for a single group.

    On a mix of tasks the whole-set tau_b mostly reflects that tasks differ; this one does not.
    """
    x, y, names = np.asarray(scores), np.asarray(lengths), np.asarray(groups)
    members = [names == name for name in np.unique(names)]
    if len(members) < 2:
        return math.nan
    taus = np.array([tau_b(x[group], y[group]) for group in members])
    sizes = np.array([group.sum() for group in members])
    defined = ~np.isnan(taus)
    return float(np.average(taus[defined], weights=sizes[defined])) if defined.any() else math.nan


def _interval(statistic: Callable[[NDArray[np.int64]], float], n: int) -> tuple[float, float]:
    draws = [statistic(chosen) for chosen in np.random.default_rng(0).integers(n, size=(500, n))]
    if np.all(np.isnan(draws)):
        return math.nan, math.nan
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return float(low), float(high)
