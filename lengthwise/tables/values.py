"""Values of nested rows by dotted paths: `usage.completion_tokens`, `choices.0.message`."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from lengthwise.tables import prompt_text

_MILLISECONDS: Final = 1e11
"""Numbers above are milliseconds since 1970: in seconds they would be the year 5138."""


def value_at(row: Any, path: str) -> Any:
    """Return the value at a path; None where there is none.

    A key that has dots itself comes first. Text that holds JSON, as in the cells of a CSV, is
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
        elif isinstance(value, Sequence) and not isinstance(value, str) and _is_index(key, value):
            value = value[int(key)]
        else:
            return None
    return value


def first_at(row: Any, paths: Sequence[str]) -> Any:
    """Return the value at the first of the paths where there is one; None without any."""
    return next((value for path in paths if (value := value_at(row, path)) is not None), None)


def unpacked(value: Any) -> Any:
    """Return the value, parsed if it is text that holds a JSON object or array."""
    if hasattr(value, "tolist"):  # a list in a cell of parquet is an array of NumPy
        return value.tolist()
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def prompt_of(value: Any) -> str | None:
    """Return the prompt in a text, in messages, or in the body of a request; None without text.

    Of a conversation it is the newest message of the user, the text that a scheduler scores.
    """
    inner = unpacked(value)
    if isinstance(inner, Mapping):
        if inner.get("role") is not None:
            inner = [inner]
        else:
            found = (prompt_of(inner.get(key)) for key in ("messages", "prompt", "input"))
            inner = next((text for text in found if text), None)
    if isinstance(inner, Sequence) and not isinstance(inner, str):
        only_text = inner[0] if len(inner) == 1 and isinstance(inner[0], str) else None
        inner = prompt_text.of_messages(inner) or only_text
    if isinstance(inner, str) and inner.strip():
        return inner
    if isinstance(value, str) and unpacked(value) in ({}, []):
        return None
    return value if isinstance(value, str) and value.strip() else None


def count_of(value: Any) -> int | None:
    """Return a number of tokens, also one in text; None for anything else."""
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    is_whole = math.isfinite(value) and value >= 0 and value == int(value)
    return int(value) if is_whole else None


def seconds_of(value: Any) -> float | None:
    """Return an instant in seconds since 1970: of seconds, milliseconds or an ISO 8601 time."""
    if isinstance(value, str):
        try:
            time = datetime.fromisoformat(value.strip())
        except ValueError:
            is_number = re.fullmatch(r"\s*\d+(?:\.\d*)?\s*", value)
            return seconds_of(float(value)) if is_number else None
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value / 1e3 if value > _MILLISECONDS else float(value)


def _is_index(key: str, values: Sequence[Any]) -> bool:
    return key.isdecimal() and int(key) < len(values)
