"""Linear interpolation in small tables of measurements.

Plain Python lists, because looking up one point in NumPy costs several times as much. Below its
first value an axis is held constant; beyond its last one the slope of the last interval goes on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from scheduler_adapters.workload.requests import Floats as Floats


def fill(values_XY: ArrayLike, y_Y: ArrayLike) -> Floats:
    """Replace each NaN by the line through its neighbours in the row; a row needs a number."""
    table_XY = np.array(values_XY, dtype=np.float64)
    axis_Y = np.asarray(y_Y, dtype=np.float64)
    for row_Y in table_XY:
        known_Y = ~np.isnan(row_Y)
        row_Y[:] = along(axis_Y, axis_Y[known_Y], row_Y[known_Y])
    return table_XY


def along(wanted: Floats, axis_N: Floats, values_N: Floats) -> Floats:
    """Return the values at `wanted` on the line through N points."""
    if len(axis_N) == 1:
        return np.full(len(wanted), values_N[0])
    slope = (values_N[-1] - values_N[-2]) / (axis_N[-1] - axis_N[-2])
    beyond = np.maximum(wanted - axis_N[-1], 0.0) * slope
    return np.asarray(np.interp(wanted, axis_N, values_N) + beyond, dtype=np.float64)


def by_count(counts: ArrayLike, values: ArrayLike, *, most: int) -> Floats:
    """Return the values at 0, 1, ..., `most`, from those measured at `counts` (N,)."""
    axis_N = np.asarray(counts, dtype=np.float64)
    wanted = np.arange(most + 1, dtype=np.float64)
    return along(wanted, axis_N, np.asarray(values, dtype=np.float64))


class Grid2:
    """A table over two ascending axes of at least two values each."""

    def __init__(self, x_X: ArrayLike, y_Y: ArrayLike, values_XY: ArrayLike) -> None:
        self.x: list[float] = np.asarray(x_X, dtype=np.float64).tolist()
        self.y: list[float] = np.asarray(y_Y, dtype=np.float64).tolist()
        self.values: list[list[float]] = np.asarray(values_XY, dtype=np.float64).tolist()

    @classmethod
    def of_table(cls, table: pd.DataFrame, scale: float = 1.0) -> Grid2:
        """Return the grid of a table by index and column, holes filled and values scaled."""
        values_XY = fill(table, table.columns) * scale
        return cls(table.index, table.columns, values_XY)

    def at(self, x: float, y: float) -> float:
        """Return the value at one point."""
        # `_bracket` written out twice: this runs in every simulated step.
        axis = self.x
        row = bisect_right(axis, x, 1, len(axis) - 1)
        start = axis[row - 1]
        share_x = (x - start) / (axis[row] - start) if x > start else 0.0
        axis = self.y
        column = bisect_right(axis, y, 1, len(axis) - 1)
        start = axis[column - 1]
        share_y = (y - start) / (axis[column] - start) if y > start else 0.0
        low, high = self.values[row - 1], self.values[row]
        first = low[column - 1]
        at_low = first + share_y * (low[column] - first)
        first = high[column - 1]
        at_high = first + share_y * (high[column] - first)
        return at_low + share_x * (at_high - at_low)

    def packed(self) -> Floats:
        """Return the table as one array, with the axes as first column and first row."""
        corner_and_y = np.array([0.0, *self.y])
        return np.vstack([corner_and_y, np.column_stack([self.x, self.values])])


class Grid3:
    """One `Grid2` for each of at least two ascending values of a third axis."""

    def __init__(self, z_Z: ArrayLike, grids_Z: Sequence[Grid2]) -> None:
        self.z: list[float] = np.asarray(z_Z, dtype=np.float64).tolist()
        self.grids = list(grids_Z)

    def at(self, z: float, x: float, y: float) -> float:
        """Return the value at one point."""
        index, share = _bracket(self.z, z)
        low, high = self.grids[index - 1].at(x, y), self.grids[index].at(x, y)
        return low + share * (high - low)


def _bracket(axis: list[float], value: float) -> tuple[int, float]:
    """Return the end of the interval of `value`, and the share of it below; may exceed 1."""
    end = bisect_right(axis, value, 1, len(axis) - 1)
    start = axis[end - 1]
    return end, max(0.0, (value - start) / (axis[end] - start))
