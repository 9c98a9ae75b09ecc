"""Arrival times: wall clocks, and numbers whose unit the magnitude, a name or an option states."""

import re
from array import array
from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import DataError
from lengthwise.tables.values import number_of, seconds_of

TimeUnit = Literal["s", "ms", "us", "ns"]
PER_SECOND: Final[dict[str, float]] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
TIME_UNIT: Final = "--time-unit"
_YEARS: Final = (9.46e8, 4.11e9)
"""The years 2000 to 2100, in seconds since 1970: numbers in this range are such instants."""
_NAMED: Final = re.compile(
    r"(?:_(?=[a-z])|(?<=[a-z])(?=[A-Z]))(s|secs?|seconds|[mM]s|[mM]illis|[uU]s|ns|Nanos?)$"
)
_UNITS: Final = {"m": "ms", "u": "us", "n": "ns", "s": "s"}
_MOST: Final = 0.9
"""Fraction of instants that makes the other numbers bad rows."""


def instant_of(value: Any) -> float | None:
    """Return the seconds since 1970 of a wall clock or of a number that is such an instant."""
    if (number := number_of(value)) is not None:
        scaled = [number / per_second for per_second in PER_SECOND.values()]
        return next((each for each in scaled if _YEARS[0] <= each <= _YEARS[1]), None)
    return seconds_of(value)


class Times:
    """Column of arrival times that grows row by row; its unit is known at the end."""

    def __init__(self) -> None:
        self.numbers, self.is_wall = array("d"), array("b")

    def add(self, value: Any) -> str | None:
        """Append the time of a row; returns the reason if it is none."""
        number = number_of(value)  # first, since 20260301 may be a count of milliseconds
        seconds = seconds_of(value) if number is None else number
        if seconds is not None:
            self.numbers.append(seconds)
            self.is_wall.append(number is None)
            return None
        if value in (None, ""):
            return "it has no time"
        return f"its time is no number or wall clock ({str(value)[:40]!r})"

    def skip(self) -> None:
        """Append an unknown time."""
        self.numbers.append(np.nan)
        self.is_wall.append(True)

    def in_seconds(
        self, name: str, unit: str | None, known_unit: str | None, others: Sequence[str] = ()
    ) -> tuple[NDArray[np.float64], str]:
        """Return the times (N,) in seconds, NaN for a bad one, and the rule.

        Args:
            name: column of the times; `others` are those of further rows.
            unit: that of `--time-unit`, for all numbers.
            known_unit: that of a public trace, for numbers since its start.

        Raises:
            DataError: nothing tells the unit, or columns disagree about it.
        """
        values, is_wall = np.array(self.numbers), np.array(self.is_wall, dtype=bool)
        is_known = np.isfinite(values)
        if unit is not None:
            seconds = np.where(is_wall, values, values / PER_SECOND[unit])
            return _of_one_clock(seconds), f"{name} in {unit}"
        seconds, found = np.where(is_wall, values, np.nan), []
        for known, per_second in PER_SECOND.items():
            low, high = np.multiply(_YEARS, per_second)
            rows = ~is_wall & (values >= low) & (values <= high)
            if rows.any():
                seconds[rows] = values[rows] / per_second
                found.append(f"in {known}")
        found += ["of a wall clock"] * bool((is_wall & is_known).any())
        is_since_1970 = np.isfinite(seconds)
        if found and is_since_1970.sum() >= _MOST * is_known.sum():
            return _of_one_clock(seconds), f"{name} {' and '.join(found)}"
        if is_wall[is_known].any():
            raise DataError(f"{name} mixes wall clocks with numbers; give a column of one kind")
        named = {each: _NAMED.search(each) for each in (name, *others)}
        units = {each and _UNITS[each[1][0].lower()] for each in named.values()}
        if len(units) > 1:
            raise DataError(f"{' and '.join(named)} are of different units; read them apart")
        told = known_unit or units.pop()
        if told is None:
            least, most = np.nanmin(values), np.nanmax(values)
            raise DataError(
                f"{name} is {least:g} to {most:g}, in no known unit; give {TIME_UNIT} s, ms, us "
                "or ns"
            )
        return values / PER_SECOND[told], f"{name} in {told}"


def _of_one_clock(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the times; among instants of this century others are bad, such as 1970 for none."""
    is_instant = (seconds >= _YEARS[0]) & (seconds <= _YEARS[1])
    if 2 * is_instant.sum() < np.isfinite(seconds).sum():
        return seconds
    return np.where(is_instant, seconds, np.nan)
