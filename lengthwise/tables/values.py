"""Values of nested rows by dotted paths: `usage.completion_tokens`, `choices.0.message`."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

_MILLISECONDS: Final = 1e11
"""Numbers above are milliseconds since 1970: in seconds they would be the year 5138."""


def value_at(row: Any, path: str) -> Any:
    """Return the value at a path; None for a path that the row lacks.

    A key with dots of its own comes before a path. JSON in a text, as in the cells of a CSV, is
    parsed on the way. `usage.output*` is the sum of the numbers whose keys begin with `output`.
    """
    if isinstance(row, Mapping) and path in row:
        return row[path]
    value = row
    for key in path.split("."):
        value = unpacked(value)
        if isinstance(value, Mapping) and key.endswith("*"):
            parts = [part for name, part in value.items() if str(name).startswith(key[:-1])]
            numbers = [part for part in map(count_of, parts) if part is not None]
            value = sum(numbers) if numbers else None
        elif isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def first_at(row: Any, paths: Sequence[str]) -> Any:
    """Return the value at the first path that has one; None without any."""
    return next((value for path in paths if (value := value_at(row, path)) is not None), None)


def unpacked(value: Any) -> Any:
    """Return the value; the parsed object or array if it is a text in JSON."""
    if hasattr(value, "tolist"):  # a list in a cell of parquet is an array of NumPy
        return value.tolist()
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def count_of(value: Any) -> int | None:
    """Return a number of tokens, also of a text; None for any other value."""
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    is_whole = _is_number(value) and value >= 0 and value == int(value)
    return int(value) if is_whole else None


def seconds_of(value: Any) -> float | None:
    """Return an instant in seconds since 1970: of seconds, milliseconds or an ISO 8601 time."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            is_number = re.fullmatch(r"\s*\d+(?:\.\d*)?\s*", value)
            return seconds_of(float(value)) if is_number else None
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if not _is_number(value):
        return None
    return value / 1e3 if value > _MILLISECONDS else float(value)


def _is_number(value: Any) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and math.isfinite(value)
