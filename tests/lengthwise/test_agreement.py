"""Kendall's tau-b, and where it is undefined."""

import math

import pytest

from lengthwise.agreement import tau_b


@pytest.mark.parametrize(
    ("x", "y"), [([], []), ([1], [1]), ([1, 1], [1, 2]), ([1, 2], [0, 0]), ([1, math.nan], [1, 2])]
)
def test_it_is_nan_where_it_is_undefined(x, y):
    assert math.isnan(tau_b(x, y))
    assert math.isnan(tau_b(y, x))


def test_ties_by_chance_are_the_mean_over_their_orders():
    y, orders = [1, 3, 2, 4], [(1, 2, 3, 4), (2, 1, 3, 4), (1, 2, 4, 3), (2, 1, 4, 3)]
    mean = sum(tau_b(order, y) for order in orders) / len(orders)
    assert tau_b([1, 1, 2, 2], y, ties_by_chance=True) == pytest.approx(mean)
