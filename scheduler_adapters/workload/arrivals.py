"""Poisson arrivals, and the random streams of an experiment's draws."""

import numpy as np

from lengthwise.settings import PositiveFinite, checked
from scheduler_adapters.workload.requests import Floats

ARRIVAL_STREAM, LENGTH_STREAM, SCORE_STREAM, ORDER_STREAM, CLASS_STREAM = range(1, 6)
"""Second seeds of the generator, so that draws with one seed share no random numbers."""


@checked
def poisson_arrivals_s(count: int, *, rate_per_s: PositiveFinite, seed: int) -> Floats:
    """Draw arrival times (count,) of a Poisson process with `rate_per_s`, in seconds."""
    gaps_s = np.random.default_rng((seed, ARRIVAL_STREAM)).exponential(1 / rate_per_s, count)
    return np.cumsum(gaps_s)
