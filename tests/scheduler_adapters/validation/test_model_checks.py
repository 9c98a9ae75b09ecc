"""Errors of one latency model against another."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.validation.model_checks import STEPS, compare, step_check


def test_an_error_is_a_fraction_of_the_other_side() -> None:
    check = compare(np.array([1.0, 3.0]), np.array([2.0, 2.0]), quantity="steps", against="x")
    assert (check.mape_fraction, check.num_points) == (0.5, 2)
    assert (check.quantity, check.against) == ("steps", "x")


def test_a_model_that_is_a_tenth_slower_is_off_by_that_on_every_step() -> None:
    one, slower = AffineLatency(base_s=0.01), AffineLatency(base_s=0.011)
    check = step_check(slower, one, "itself")
    assert check.mape_fraction == pytest.approx(0.1)
    assert check.num_points == len(STEPS)
    assert step_check(one, one, "itself").mape_fraction == 0.0
