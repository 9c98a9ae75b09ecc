"""Values of nested rows by dotted paths: `usage.completion_tokens`, `choices.0.message`.

Case and signs of a key do not count: the path `start_time` leads to `startTime` and `Start time`,
and `usage.input` to a flat column `usage_input`. A key that is written as in the path comes first.
"""

import math
import re
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

from lengthwise.strict_json import parsed

_MOST: Final = 2**31
"""Largest number of tokens of a request."""
_DIGITS, _SHORT, _WIDE = 10, 1 << 20, 100
_OFFSET: Final = re.compile(r" (?:([+-]\d\d:?\d\d)(?: UTC)?|UTC)$")
_DAYS_FIRST: Final = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4}),?[ T](.*)", re.DOTALL)
_CLOCKS: Final = tuple(
    f"{day}{hours}:%M{rest}"
    for day in ("%Y/%m/%d ", "%d/%b/%Y:")
    for hours, end in (("%H", ""), ("%I", " %p"))
    for rest in (f":%S{end}", f":%S.%f{end}", end, f":%S{end}%z")
)
_SIGNS: Final = re.compile(r"[\W_]+")


@lru_cache(1 << 16)
def plain(key: str) -> str:
    """Return a key in lower case without signs."""
    return _SIGNS.sub("", key).lower()


@lru_cache(4)
def _plain_keys(keys: tuple[Any, ...]) -> dict[str, Any]:
    return {plain(str(key)): key for key in reversed(keys)}


def _splits(value: Mapping[str, Any], path: str) -> list[tuple[Any, str]]:
    """Return the keys that a path may begin with, each with the rest; the whole path first."""
    find = _splits_of if len(value) < _WIDE else _splits_of.__wrapped__  # memory of wide rows
    return find(tuple(value), path)


@lru_cache(1 << 13)
def _splits_of(keys: tuple[Any, ...], path: str) -> list[tuple[Any, str]]:
    plain_keys, found, parts = _plain_keys(keys), list[tuple[Any, str]](), path.split(".")
    for end in (len(parts), *range(1, len(parts))):
        head = ".".join(parts[:end])
        if (own := head if head in keys else plain_keys.get(plain(head))) is not None:
            found.append((own, ".".join(parts[end:])))
    return found


def _matches(name: object, pattern: str) -> bool:
    return fnmatchcase(str(name).lower(), pattern.lower())


def value_at(row: Any, path: str) -> Any:
    """Return the value at a path; None for a path that the row lacks.

    A key with dots of its own comes before a path. JSON in a text, as in the cells of a CSV, is
    parsed on the way. `usage.output*` is the sum of the numbers under keys that match.
    """
    value = unpacked(row)
    if isinstance(value, Mapping):
        if path in value:
            return value[path]
        if "*" in path and "." not in path:
            parts = [part for name, part in value.items() if _matches(name, path)]
            numbers = [part for part in map(count_of, parts) if part is not None]
            return sum(numbers) if numbers else None
        for own, rest in _splits(value, path):
            if not rest or (found := value_at(value[own], rest)) is not None:
                return found if rest else value[own]
    elif isinstance(value, list):
        key, dot, rest = path.partition(".")
        if key.lstrip("-").isdecimal() and -len(value) <= int(key) < len(value):
            return value_at(value[int(key)], rest) if dot else value[int(key)]
    return None


def way_to(value: Any, path: str) -> tuple[str, ...] | None:
    """Return the keys that lead to a path in rows of the same shape; () if a walk must find it.

    None: no value can be there.
    """
    if type(value) is not dict:
        return ()
    if "*" in path and "." not in path and path not in value:
        return () if any(_matches(name, path) for name in value) else None
    ways = list[tuple[str, ...]]()
    for own, rest in _splits(value, path):
        if not rest:
            return (own,)
        if (way := way_to(value[own], rest)) is not None:
            ways.append((own, *way) if way else ())
    return None if not ways else ways[0] if len(ways) == 1 else ()


def shape_of(row: Mapping[str, Any], inner: Set[str]) -> tuple[Any, ...]:
    """Return the keys of a row, and those of the objects below the plain keys `inner`."""
    return tuple(
        [
            (key, shape_of(value, inner)) if type(value) is dict and plain(key) in inner else key
            for key, value in row.items()
        ]
    )


def first_at(row: Any, paths: Sequence[str]) -> Any:
    """Return the value at the first path that has one; None without any."""
    return next((value for path in paths if (value := value_at(row, path)) is not None), None)


def unpacked(value: Any) -> Any:
    """Return the value; the parsed object or array if it is a text in JSON."""
    if hasattr(value, "tolist"):  # a list in a cell of parquet is an array of NumPy
        return value.tolist()
    if type(value) is str and value.lstrip()[:1] in ("{", "["):
        return _parsed(value) if len(value) < _SHORT else _parsed.__wrapped__(value)
    return value


@lru_cache(8)
def _parsed(text: str) -> Any:
    """Return the value of a text in JSON, or the text; many paths lead into one text."""
    try:
        return parsed(text)
    except ValueError:
        return text


def count_of(value: Any) -> int | None:
    """Return a number of tokens up to 2**31, also of a text; None for any other value."""
    if value is None:
        return None
    if type(value) is str and value.isdecimal() and len(value) < _DIGITS:
        return int(value)
    if type(value) is not int:
        try:
            whole = not isinstance(value, bool) and int(float(value)) == float(value)
            value = int(value if not isinstance(value, str) else float(value)) if whole else -1
        except (TypeError, ValueError, OverflowError):
            return None
    return value if 0 <= value <= _MOST else None


def clock_of(value: Any) -> tuple[float, bool] | None:
    """Return the seconds since 1970 of a wall clock, and whether it has a zone; else UTC.

    A clock is in ISO 8601, in RFC 2822, or as in logs: 2026/11/28 1:02:03 PM, 28/Nov/2026:13:02:03
    +0000. Days as 11/28/2026 count where a number above 12 or AM and PM tell the month.
    """
    if isinstance(value, str):
        text = _OFFSET.sub(lambda found: found[1] or "+00:00", value.strip())
        value = None
        if date := _DAYS_FIRST.fullmatch(text):
            first, second = int(date[1]), int(date[2])
            month, day = (second, first) if first > 12 else (first, second)
            is_known = first == second or max(first, second) > 12 or text[-1:] in "mM"
            text = f"{date[3]}/{month:02}/{day:02} {date[4]}" if is_known else ""
        with suppress(ValueError):
            value = datetime.fromisoformat(text)
        if value is None and text[:1].isalpha() and ":" in text:
            with suppress(ValueError, IndexError, TypeError):
                value = parsedate_to_datetime(text)
        if value is None and "/" in text:
            for form in _CLOCKS:
                with suppress(ValueError):
                    value = datetime.strptime(text, form)
                    break
    if not isinstance(value, datetime):
        return None
    has_zone = value.tzinfo is not None
    try:
        return (value if has_zone else value.replace(tzinfo=UTC)).timestamp(), has_zone
    except (OverflowError, ValueError):
        return None


def number_of(value: Any) -> float | None:
    """Return a finite number, also of a text; None for any other value."""
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and math.isfinite(number := float(value)):
            return number
    return None
