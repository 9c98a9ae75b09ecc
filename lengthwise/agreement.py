"""Rank agreement: Kendall's tau-b, and its text."""

import math

import numpy as np
from numpy.typing import ArrayLike


def tau_b(x: ArrayLike, y: ArrayLike, *, ties_by_chance: bool = False) -> float:
    """Return Kendall's tau-b of two lists, in [-1, 1]; 1 is the same order. Needs scipy.

    NaN where tau-b is undefined: fewer than two items, a NaN item, or one constant list.

    tau-b leaves pairs tied in x out of its denominator, which flatters an x of few values. A
    scheduler has to order them: with `ties_by_chance` it is the mean over random orders of equal x.
    """
    from scipy.stats import kendalltau  # imported late: a third of a second

    if (n := np.size(x)) < 2:
        return math.nan
    tau = float(kendalltau(x, y, method="asymptotic").statistic)
    ties = np.unique(x, return_counts=True)[1] if ties_by_chance else np.ones(1)
    return tau * math.sqrt(1 - (ties * (ties - 1)).sum() / (n * (n - 1)))


def figure_text(value: float | None, form: str = ".3f") -> str:
    """Return a figure in a format; None and NaN are undefined."""
    return "undefined" if value is None or math.isnan(value) else format(value, form)
