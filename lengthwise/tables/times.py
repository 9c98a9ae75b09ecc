"""Arrival times: wall clocks, and numbers whose unit the magnitude, a name or an option states."""

import re
from array import array
from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import DataError
from lengthwise.tables.values import clock_of, number_of

TimeUnit = Literal["s", "ms", "us", "ns"]
PER_SECOND: Final[dict[str, float]] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_YEARS: Final = (9.46e8, 4.11e9)
"""The years 2000 to 2100, in seconds since 1970: numbers in this range are such instants."""
_NAMED: Final = re.compile(
    r"(?:_(?=[a-z])|(?<=[a-z])(?=[A-Z]))(s|secs?|seconds|[mM]s|[mM]illis|[uU]s|ns|Nanos?)$"
)
_UNITS: Final = {"m": "ms", "u": "us", "n": "ns", "s": "s"}
_NUMBER, _ZONE, _NO_ZONE = range(3)
_MOST: Final = 0.9
"""Fraction of instants that makes the other numbers bad rows."""


def instant_of(value: Any) -> float | None:
    """Return the seconds since 1970 of a wall clock or of a number that is such an instant."""
    if (number := number_of(value)) is not None:
        scaled = [number / per_second for per_second in PER_SECOND.values()]
        return next((each for each in scaled if _YEARS[0] <= each <= _YEARS[1]), None)
    found = clock_of(value)
    return found and found[0]


class Times:
    """Column of arrival times that grows row by row; its unit is known at the end."""

    def __init__(self) -> None:
        self.numbers, self.kinds = array("d"), array("b")

    def add(self, value: Any) -> str | None:
        """Append the time of a row; returns the reason if it is none."""
        number = number_of(value)  # first, since 20260301 may be a count of milliseconds
        clock = (number, False) if number is not None else clock_of(value)
        if clock is not None:
            self.numbers.append(clock[0])
            self.kinds.append(_NUMBER if number is not None else _ZONE if clock[1] else _NO_ZONE)
            return None
        if value in (None, ""):
            return "it has no time"
        return f"its time is no number or wall clock ({str(value)[:40]!r})"

    def skip(self) -> None:
        """Append an unknown time."""
        self.numbers.append(np.nan)
        self.kinds.append(_NUMBER)

    def num_without_zone(self) -> int:
        """Return the number of wall clocks without a zone; 0 if all times are such."""
        own, every = self.kinds.count(_NO_ZONE), np.isfinite(np.array(self.numbers)).sum()
        return own if own < every else 0

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
        values, is_wall = np.array(self.numbers), np.array(self.kinds) != _NUMBER
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
        if found and np.isfinite(seconds).sum() >= _MOST * is_known.sum():
            return _of_one_clock(seconds), f"{name} {' and '.join(found)}"
        named = {each: _NAMED.search(each) for each in (name, *others)}
        units = {each and _UNITS[each[1][0].lower()] for each in named.values()}
        if len(units) > 1:
            raise DataError(f"{' and '.join(named)} are of different units; read them apart")
        told = known_unit or units.pop()
        if is_wall.any() or (found and told == "s"):
            raise DataError(f"{name} mixes instants with other numbers; give a column of one kind")
        if told is None:
            least, most = np.nanmin(values), np.nanmax(values)
            raise DataError(
                f"{name} is {least:g} to {most:g}, in no known unit; give --time-unit s, ms, "
                "us or ns"
            )
        return _of_one_clock(values / PER_SECOND[told]), f"{name} in {told}"


def _of_one_clock(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the times; bad are negative ones, and among instants of this century all others."""
    is_instant = (seconds >= _YEARS[0]) & (seconds <= _YEARS[1])
    if 2 * is_instant.sum() < np.isfinite(seconds).sum():
        is_instant = seconds >= 0
    return np.where(is_instant, seconds, np.nan)
