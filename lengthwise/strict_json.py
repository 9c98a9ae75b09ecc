"""Strict JSON: null in place of the numbers that JSON lacks, NaN and infinity."""

import json
import math
from typing import Any


def finite_or_null(value: Any) -> Any:
    """Return a value with None for NaN and infinity, at any depth; tuples become lists."""
    if isinstance(value, dict):
        return {key: finite_or_null(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_null(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return a value as strict JSON, on one line unless it is indented."""
    return json.dumps(finite_or_null(value), indent=indent, allow_nan=False)
