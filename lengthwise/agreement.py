"""Rank agreement: Kendall's tau-b, and its text."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray


def tau_b(x: ArrayLike, y: ArrayLike, *, ties_by_chance: bool = False) -> float:
    """Return Kendall's tau-b of two lists, in [-1, 1]; 1 is the same order.

    NaN where tau-b is undefined: fewer than two items, a NaN item, or one constant list. Takes
    O(n log n) time and O(n) memory. Equal to `scipy.stats.kendalltau` in every bit.

    tau-b leaves pairs tied in x out of its denominator, which flatters an x of few values. A
    scheduler has to order them: with `ties_by_chance` it is the mean over random orders of equal x.
    """
    columns = [np.asarray(values).ravel() for values in (x, y)]
    if any(column.dtype.kind == "f" and np.isnan(column).any() for column in columns):
        return math.nan
    # Dense ranks from 0, equal for equal values.
    ranks_x, ranks_y = (np.unique(column, return_inverse=True)[1] for column in columns)
    n = len(ranks_x)
    pairs = n * (n - 1) // 2
    tied_x, tied_y = _tied_pairs(ranks_x), _tied_pairs(ranks_y)
    if pairs in (tied_x, tied_y):
        return math.nan
    levels_y = int(ranks_y.max()) + 1
    both = np.sort(ranks_x * levels_y + ranks_y)  # by x, ties by y
    is_new = np.concatenate(([False], both[1:] != both[:-1]))
    # Pairs tied on both sides are among those of either side.
    tied = tied_x + tied_y - _tied_pairs(np.cumsum(is_new))
    balance = pairs - tied - 2 * _inversions(both % levels_y)
    ordered_x = pairs if ties_by_chance else pairs - tied_x
    return min(1.0, max(-1.0, balance / math.sqrt(ordered_x) / math.sqrt(pairs - tied_y)))


def figure_text(value: float | None, form: str = ".3f") -> str:
    """Return a figure in a format; None and NaN are undefined."""
    return "undefined" if value is None or math.isnan(value) else format(value, form)


def _tied_pairs(ranks: NDArray[np.int64]) -> int:
    counts = np.bincount(ranks)
    return int((counts * (counts - 1) // 2).sum())


def _inversions(ranks: NDArray[np.int64]) -> int:
    """Return the number of pairs in descending order: within each half, and across the halves."""
    if len(ranks) <= 128:
        return int(np.count_nonzero(np.triu(ranks[:, None] > ranks)))
    left, right = np.array_split(ranks, 2)
    # Sorted on both sides: searches in order are faster.
    not_above = int(np.searchsorted(np.sort(left), np.sort(right), side="right").sum())
    return _inversions(left) + _inversions(right) + len(left) * len(right) - not_above
