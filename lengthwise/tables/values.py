"""Values of nested rows by dotted paths: `usage.completion_tokens`, `choices.0.message`."""

import math
import re
from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Final

from lengthwise.strict_json import parsed

_MOST: Final = 2**31
"""Largest number of tokens of a request."""
_DIGITS: Final = 10
_OFFSET: Final = re.compile(r" (?:([+-]\d\d:?\d\d)(?: UTC)?|UTC)$")


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
            parts = [part for name, part in value.items() if fnmatchcase(str(name), path)]
            numbers = [part for part in map(count_of, parts) if part is not None]
            return sum(numbers) if numbers else None
        key, dot, rest = path.partition(".")
        while dot:
            if key in value and (found := value_at(value[key], rest)) is not None:
                return found
            more, dot, rest = rest.partition(".")
            key += f".{more}"
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
    if path in value:
        return (path,)
    if "*" in path and "." not in path:
        return () if any(fnmatchcase(str(name), path) for name in value) else None
    keys, ways = path.split("."), list[tuple[str, ...]]()
    for end in range(1, len(keys)):
        key = ".".join(keys[:end])
        if key in value and (way := way_to(value[key], ".".join(keys[end:]))) is not None:
            ways.append((key, *way) if way else ())
    return None if not ways else ways[0] if len(ways) == 1 else ()


def shape_of(row: Mapping[str, Any], inner: Set[str]) -> tuple[Any, ...]:
    """Return the keys of a row, and those of the objects below the keys `inner`."""
    return tuple(
        [
            (key, shape_of(value, inner)) if type(value) is dict and key in inner else key
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
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return parsed(value)
        except ValueError:
            return value
    return value


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
    """Return the seconds since 1970 of an ISO 8601 time, and whether it has a zone; else UTC."""
    if isinstance(value, str):
        try:
            value = _OFFSET.sub(lambda found: found[1] or "+00:00", value.strip())
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    has_zone = value.tzinfo is not None
    return (value if has_zone else value.replace(tzinfo=UTC)).timestamp(), has_zone


def number_of(value: Any) -> float | None:
    """Return a finite number, also of a text; None for any other value."""
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
