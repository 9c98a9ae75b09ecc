"""Arrivals: their rate, and their repetition with a seed."""

import numpy as np
import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.workload.arrivals import arrivals_s


def test_poisson_arrivals_have_the_rate_and_repeat_with_the_seed():
    arrival_s = arrivals_s(20_000, rate_per_s=5.0, seed=3)
    assert len(arrival_s) / arrival_s[-1] == pytest.approx(5.0, rel=0.03)
    np.testing.assert_array_equal(arrival_s, arrivals_s(20_000, rate_per_s=5.0, seed=3))
    with pytest.raises(ConfigError, match="rate_per_s is 0"):
        arrivals_s(10, rate_per_s=0.0, seed=0)


def test_bursts_have_the_rate_and_the_variation_of_their_gaps():
    gaps_s = np.diff(arrivals_s(40_000, rate_per_s=5.0, cv=3.0, seed=1))
    assert gaps_s.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(3.0, rel=0.05)
