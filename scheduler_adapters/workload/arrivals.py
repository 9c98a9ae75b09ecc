"""Arrival processes, and the random streams of an experiment's draws."""

import numpy as np

from lengthwise.errors import require
from scheduler_adapters.workload.requests import Floats

ARRIVAL_STREAM, LENGTH_STREAM, SCORE_STREAM, ORDER_STREAM, CLASS_STREAM = range(1, 6)
"""Second seeds of the generator, so that draws with one seed share no random numbers."""


def poisson_arrivals_s(count: int, *, rate_per_s: float, seed: int) -> Floats:
    """Draw arrival times (count,) of a Poisson process with `rate_per_s`, in seconds."""
    _check_rate(rate_per_s)
    gaps_s = np.random.default_rng((seed, ARRIVAL_STREAM)).exponential(1 / rate_per_s, count)
    return np.cumsum(gaps_s)


def gamma_arrivals_s(count: int, *, rate_per_s: float, cv: float, seed: int) -> Floats:
    """Draw arrival times (count,) with gamma gaps; `cv` above 1 makes bursts, 1 is Poisson."""
    _check_rate(rate_per_s)
    require("cv", cv, 0 < cv < np.inf, "a number above 0")
    shape = 1 / cv**2
    random = np.random.default_rng((seed, ARRIVAL_STREAM))
    return np.cumsum(random.gamma(shape, 1 / (rate_per_s * shape), count))


def _check_rate(rate_per_s: float) -> None:
    require("rate_per_s", rate_per_s, 0 < rate_per_s < np.inf, "a number above 0, or a burst")
