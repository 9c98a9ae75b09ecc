"""Arrival times: wall clocks, and numbers whose unit the magnitude, a name or an option states."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import DataError
from lengthwise.tables.gateways import WORDS
from lengthwise.tables.values import clock_of, number_of

TimeUnit = Literal["s", "ms", "us", "ns"]
PER_SECOND: Final[dict[str, float]] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_YEARS: Final = (9.46e8, 4.11e9)
"""The years 2000 to 2100, in seconds since 1970: numbers in this range are such instants."""
_UNITS: Final = "|".join(map("({})".format, WORDS["units"]))
_NAMED: Final = re.compile(rf"(?:[_ (\[](?=[a-z])|(?<=[a-z])(?=[A-Z]))(?:{_UNITS})[)\]]?$")
_STARTS: Final = tuple(map(re.compile, WORDS["starts"]))
_OTHERS: Final = re.compile("|".join(WORDS["others"]))
_GAPS_S: Final = (0.05, 600.0)
"""Mean gaps of public traces; outside, the unit is not the one of the trace's name."""
_NUMBER, _ZONE, _NO_ZONE = range(3)
Time = tuple[float, int]
"""A number, or the seconds since 1970 of a wall clock, and which of the two."""
INSTANTS: Final = 1e8
"""Times above are seconds since 1970, which the first request starts anew."""
_MOST: Final = 0.9
"""Fraction of instants that makes the other numbers bad rows."""


def instant_of(value: Any) -> float | None:
    """Return the seconds since 1970 of a wall clock or of a number that is such an instant."""
    number, clock = number_of(value), clock_of(value)
    scaled = [] if number is None else [number / unit for unit in PER_SECOND.values()]
    instants = [each for each in scaled if _YEARS[0] <= each <= _YEARS[1]]
    return next(iter(instants), None) if scaled else clock and clock[0]


def time_of(value: Any) -> Time | str:
    """Return the time in a value, or the reason why there is none."""
    if isinstance(value, dict):  # of MongoDB's JSON
        value = value.get("$date", value.get("$numberLong"))
    if (number := number_of(value)) is not None:  # first: 20260301 may be milliseconds
        return number, _NUMBER
    if (clock := clock_of(value)) is not None:
        return clock[0], _ZONE if clock[1] else _NO_ZONE
    why = f"its time is no number or wall clock ({str(value)[:40]!r})"
    return "it has no time" if value in (None, "", {}) else why


def unit_in(name: str) -> str | None:
    """Return the unit at the end of a column's name: `sent_ms`, `startTimeUnixNano`."""
    parts = found.groups() if (found := _NAMED.search(name)) else ()
    return next((unit for unit, part in zip(PER_SECOND, parts, strict=False) if part), None)


def time_column(columns: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    """Return the column with the times of requests, by names and values; () for none or several."""
    found: dict[str, int] = {}
    for name, values in columns.items():
        key = name.rpartition(".")[2].lower()
        stem = next((n for n, start in enumerate(_STARTS) if start.search(key)), len(_STARTS))
        is_instant = unit_in(name) or None not in map(instant_of, values)
        is_number = None not in map(number_of, values) and is_instant and stem < len(_STARTS)
        if values and not _OTHERS.search(key) and (is_number or None not in map(clock_of, values)):
            found[name] = stem
    rank = min(found.values(), default=0)
    best = tuple(name for name in found if found[name] == rank)
    return best[: rank < len(_STARTS) or len(best) == 1]


class Times:
    """Column of arrival times, and its unit."""

    def __init__(self, numbers: NDArray[np.float64], kinds: NDArray[np.int64]) -> None:
        """Take the numbers (N,), NaN for an unknown time, and which kind of `Time` each is."""
        self.numbers, self.kinds = numbers, kinds

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
        values, is_wall = self.numbers, self.kinds != _NUMBER
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
        units = {unit_in(each) for each in (name, *others)}
        if len(units) > 1:
            text = " and ".join((name, *others))
            raise DataError(f"{text} are of different units; read them apart")
        told = _of_trace(values, name, known_unit) if known_unit else units.pop()
        if is_wall.any() or (found and told == "s"):
            raise DataError(f"{name} mixes instants with other numbers; give a column of one kind")
        if told is None:
            least, most = np.nanmin(values), np.nanmax(values)
            text = f"{name} is {least:g} to {most:g}, in no known unit"
            raise DataError(f"{text}; give --time-unit s, ms, us or ns")
        return _of_one_clock(values / PER_SECOND[told]), f"{name} in {told}"


def _of_trace(values: NDArray[np.float64], name: str, known_unit: str) -> str:
    """Return the unit of a public trace. Raises DataError if that makes an absurd rate."""
    unit = known_unit.rstrip("?")
    if " or " in unit:
        unit = "s" if (values[np.isfinite(values)] % 1).any() else unit.partition(" ")[0]
    gap_s = (np.nanmax(values) - np.nanmin(values)) / PER_SECOND[unit] / (len(values) - 1 or 1)
    if known_unit[-1] == "?" and gap_s and not _GAPS_S[0] <= gap_s <= _GAPS_S[1]:
        text = f"{name} in {unit} is a request every {gap_s:.3g} s, and others write other units"
        raise DataError(f"{text}; give --time-unit s, ms, us or ns")
    return unit


def times_of_files(
    seconds: NDArray[np.float64], starts: Sequence[int], order: str | None, warned: Counter[str]
) -> NDArray[np.float64]:
    """Return times (N,) since a start in the order of files that --file-times states.

    Args:
        starts: place of the first row of each file but the first.
    """
    pieces = [piece for piece in np.split(seconds, starts) if np.isfinite(piece).any()]
    spans = sorted((float(np.nanmin(piece)), float(np.nanmax(piece))) for piece in pieces)
    if len(spans) < 2 or spans[0][0] > INSTANTS or order == "together":
        return seconds
    if order == "in-turn":
        for before, piece in pairwise(pieces):
            piece += np.nanmax(before)
    elif spans[0][0] == spans[1][0] < spans[-1][1]:
        raise DataError(
            f"several files start at {spans[0][0]:g} s; give --file-times together for "
            "pieces of one log, or in-turn for logs that follow each other"
        )
    elif any(after[0] < before[1] for before, after in pairwise(spans)):
        text = "files overlap in time and are read as pieces of one log; or give --file-times"
        warned[f"{text} in-turn"] = 0
    return seconds


def _of_one_clock(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the times; bad are negative ones, and among instants of this century all others."""
    is_instant = (seconds >= _YEARS[0]) & (seconds <= _YEARS[1])
    if 2 * is_instant.sum() < np.isfinite(seconds).sum():
        is_instant = seconds >= 0
    return np.where(is_instant, seconds, np.nan)
