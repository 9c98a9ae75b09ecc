"""Kendall's tau-b is the same float as scipy's."""

import math
import random

import pytest
from hypothesis import given, strategies as st
from scipy.stats import kendalltau

from lengthwise.agreement import tau_b

few_values = st.integers(-4, 4)
many_values = st.floats(-1e6, 1e6)
columns = [st.tuples(x, y) for x in (few_values, many_values) for y in (few_values, many_values)]


@given(st.one_of(*(st.lists(column, min_size=2, max_size=60) for column in columns)))
def test_any_two_lists_agree_as_scipy_says(pairs):
    x, y = zip(*pairs, strict=True)
    expected = kendalltau(x, y).statistic
    assert tau_b(x, y) == expected or (math.isnan(expected) and math.isnan(tau_b(x, y)))


@pytest.mark.parametrize("ties", [2, 50, 10**9])
def test_long_lists_agree_as_scipy_says(ties):
    draw = random.Random(ties)
    x = [draw.randrange(ties) for _ in range(3000)]
    y = [value // 3 + draw.randrange(ties) for value in x]
    assert tau_b(x, y) == kendalltau(x, y).statistic


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
