"""A sequential test for a fall of means, with a stated average run length."""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

_BETS: Final = np.array([0.1, 0.25, 0.5, 0.8])
"""Shares of the largest bet: small ones find small falls, large ones find large falls soon."""


class DriftCharts:
    """Charts that raise an alarm once values, at most 1, fall below their means.

    While the mean of each value, given all earlier ones, is at least `means`, the expected number
    of steps up to the first alarm of any chart is at least `run_length`.

    Source: Shin, Ramdas and Rinaldo, "E-detectors: a nonparametric framework for sequential change
    detection", 2024: the Shiryaev-Roberts e-detector, here with a mixture of four bets.

    Args:
        means: least mean of each chart's values, below 1. Shape (C,).
    """

    def __init__(self, means: ArrayLike, run_length: float) -> None:
        self._means = np.minimum(np.asarray(means, np.float64), 0.99)
        self._limit = run_length * len(self._means)
        self._evidence = np.zeros((len(self._means), len(_BETS)))

    def add(self, values_SC: NDArray[np.float64]) -> bool:
        """Count S steps; return whether one of them raises an alarm. NaN: no value.

        An alarm starts all charts anew.
        """
        if not values_SC.size:
            return False
        gains = np.nan_to_num((self._means - values_SC) / (1 - self._means))
        factors = 1 + _BETS * gains[:, :, None]
        # R_n = (R_(n-1) + 1) L_n, for all steps at once by running products of L.
        products = np.cumprod(factors, axis=0)
        evidence = products * (self._evidence + np.cumsum(factors / products, axis=0))
        is_alarm = bool((evidence.mean(axis=2) >= self._limit).any())
        self._evidence = np.zeros_like(self._evidence) if is_alarm else evidence[-1]
        return is_alarm
