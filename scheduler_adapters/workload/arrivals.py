"""Arrivals at a rate, and the random streams of an experiment's draws."""

import numpy as np

from lengthwise.settings import PositiveFinite, checked
from scheduler_adapters.workload.requests import Floats

ARRIVAL_STREAM, LENGTH_STREAM, SCORE_STREAM, ORDER_STREAM, CLASS_STREAM = range(1, 6)
"""Second seeds of the generator, so that draws with one seed share no random numbers."""


@checked
def arrivals_s(
    count: int, *, rate_per_s: PositiveFinite, seed: int, cv: PositiveFinite = 1.0
) -> Floats:
    """Draw arrival times (count,) at `rate_per_s`, in seconds.

    Args:
        cv: coefficient of variation of the gaps. 1 is Poisson; gamma gaps above 1 make bursts.
    """
    random = np.random.default_rng((seed, ARRIVAL_STREAM))
    if cv == 1:
        return np.cumsum(random.exponential(1 / rate_per_s, count))
    shape = 1 / cv**2
    return np.cumsum(random.gamma(shape, 1 / (rate_per_s * shape), count))
