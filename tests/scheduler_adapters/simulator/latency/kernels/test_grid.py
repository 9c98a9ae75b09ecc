"""Interpolation between measurements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_adapters.simulator.latency.kernels.grid import Grid2, Grid3, by_count, fill


@given(x=st.floats(0, 20), y=st.floats(0, 20), z=st.floats(1, 20))
def test_a_grid_is_exact_where_the_truth_is_linear_and_beyond_its_last_values(x, y, z):
    def truth(z, x, y):
        return 1 + 2 * x + 3 * y + 4 * x * y + 5 * z

    xs, ys, zs = [0, 3, 7], [0, 1, 10], [1, 2, 9]
    grids = [Grid2(xs, ys, [[truth(z, x, y) for y in ys] for x in xs]) for z in zs]
    assert Grid3(zs, grids).at(z, x, y) == pytest.approx(truth(z, x, y))


def test_a_grid_is_constant_below_its_first_values():
    grid = Grid2([10, 20], [10, 20], [[1.0, 2.0], [3.0, 4.0]])
    assert grid.at(0, 0) == 1.0


def test_holes_are_filled_along_their_row():
    filled = fill([[0.0, np.nan, 20.0, np.nan], [np.nan, 5.0, np.nan, np.nan]], [0, 1, 2, 3])
    np.testing.assert_allclose(filled, [[0, 10, 20, 30], [5, 5, 5, 5]])


def test_counts_between_and_beyond_measurements_follow_the_line():
    np.testing.assert_allclose(by_count([1, 3], [2.0, 6.0], most=5), [2, 2, 4, 6, 8, 10])
