"""Values of nested rows by plain paths: `usage.completion_tokens`, `choices.0.message`.

Case and signs of a key do not count: the path `start_time` leads to `startTime` and `Start time`,
and `usage.input` to a flat column `usage_input`. JSON in a text is parsed on the way.
"""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, Final

from lengthwise.strict_json import parsed

_MOST: Final = 2**31
"""Largest number of tokens of a request."""
_DIGITS, _DEEP = 10, 200
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


def flat(row: Any, found: dict[str, Any] | None = None, start: str = "") -> dict[str, Any]:
    """Return the values of a row at any depth by their plain paths, of a list the first two.

    Of paths that are plainly the same the first counts; a part of `start` is a path above.
    """
    found = {} if found is None else found
    pairs = row.items() if isinstance(row, Mapping) else enumerate(row[:2])
    for key, value in pairs if len(start) < _DEEP else ():
        path = start + plain(str(key))
        if found.get(path) is None:
            found[path] = value
        if isinstance(inner := unpacked(value), Mapping | list):
            flat(inner, found, path)
    return found


def unpacked(value: Any) -> Any:
    """Return the value; the parsed object or array if it is a text in JSON."""
    if hasattr(value, "tolist"):  # a list in a cell of parquet is an array of NumPy
        return value.tolist()
    if type(value) is str and value.lstrip()[:1] in ("{", "["):
        with suppress(ValueError):
            return parsed(value)
    return value


def count_of(value: Any) -> int | None:
    """Return a number of tokens up to 2**31, also of a text; None for any other value."""
    if type(value) is not int:
        with suppress(TypeError, ValueError, OverflowError):
            is_short = isinstance(value, str) and value.isdecimal() and len(value) < _DIGITS
            number = int(value) if is_short else float(value)
            value = int(number) if number == int(number) and not isinstance(value, bool) else None
    return value if type(value) is int and 0 <= value <= _MOST else None


def clock_of(value: Any) -> tuple[float, bool] | None:
    """Return the seconds since 1970 of a wall clock, and whether it has a zone; else UTC.

    A clock is in ISO 8601, in RFC 2822, or as in logs: 2026/11/28 1:02:03 PM, 28/Nov/2026:13:02:03
    +0000. Days as 11/28/2026 count where a number above 12 or AM and PM tell the month.
    """
    if isinstance(value, str):
        text = _OFFSET.sub(lambda found: found[1] or "+00:00", value.strip())
        value, date = None, _DAYS_FIRST.fullmatch(text)
        if date:
            first, second = int(date[1]), int(date[2])
            month, day = (second, first) if first > 12 else (first, second)
            is_known = first == second or max(first, second) > 12 or text[-1:] in "mM"
            text = f"{date[3]}/{month:02}/{day:02} {date[4]}" if is_known else ""
        for form in _CLOCKS if "/" in text else ("",):
            with suppress(ValueError, IndexError, TypeError):
                is_named = text[:1].isalpha() and ":" in text
                read = parsedate_to_datetime if is_named else datetime.fromisoformat
                value = datetime.strptime(text, form) if form else read(text)
                break
    if not isinstance(value, datetime):
        return None
    has_zone = value.tzinfo is not None
    return (value if has_zone else value.replace(tzinfo=UTC)).timestamp(), has_zone


def number_of(value: Any) -> float | None:
    """Return a finite number, also of a text; None for any other value."""
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and math.isfinite(number := float(value)):
            return number
    return None
