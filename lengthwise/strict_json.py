"""Strict JSON: null in place of the numbers that JSON lacks, NaN and infinity; a bounded depth."""

import json
import math
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")
_MOST_DEPTH: Final = 100


def finite_or_null(value: T) -> T:
    """Return a value with None for NaN and infinity, at any depth; tuples become lists."""
    found: Any = value
    if isinstance(value, dict):
        found = {key: finite_or_null(part) for key, part in value.items()}
    elif isinstance(value, list | tuple):
        found = [finite_or_null(part) for part in value]
    elif isinstance(value, float) and not math.isfinite(value):
        found = None
    return cast(T, found)


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return a value as strict JSON, on one line unless it is indented."""
    return json.dumps(finite_or_null(value), indent=indent, allow_nan=False)


def parsed(text: str) -> Any:
    """Return the value of a text in JSON. Raises ValueError for another text, or a deep nesting."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {_MOST_DEPTH} deep") from None
    if text.count("[") + text.count("{") > _MOST_DEPTH:
        require_shallow(value)
    return value


def require_shallow(value: Any, most: int = _MOST_DEPTH) -> None:
    """Raise ValueError for a value that is nested more than `most` deep."""
    if type(value) in (dict, list):
        if not most:
            raise ValueError(f"it is nested more than {_MOST_DEPTH} deep")
        for part in value.values() if type(value) is dict else value:
            require_shallow(part, most - 1)
