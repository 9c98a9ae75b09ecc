"""Checks of a table's columns, whose errors name the option to give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lengthwise.errors import DataError
from lengthwise.tables.values import unpacked

if TYPE_CHECKING:
    import pandas as pd

PROMPT, LENGTH, MODEL = "--prompt-column", "--length-column", "--model-column"
PROMPT_TOKENS, ARRIVAL = "--prompt-tokens-column", "--arrival-column"
_SHOWN: Final = 30


def require_columns(
    frame: pd.DataFrame,
    names: Sequence[str],
    path: str | Path | None,
    options: Mapping[str, str] | None = None,
    hint: str = "",
) -> None:
    """Check that a table has these columns.

    Args:
        options: column -> the option that names another column in its place.
        hint: further advice after the options.

    Raises:
        DataError: a column is missing. The message lists the columns, nested ones as paths, and
            the option to give.
    """
    missing = list(dict.fromkeys(name for name in names if name not in frame))
    if not missing:
        return
    first = next(iter(frame.head(1).to_dict("records")), {})
    row = {str(name): cell for name, cell in first.items()}
    there = list(dict.fromkeys(_paths(row))) or list(map(str, frame.columns))
    shown = ", ".join(there[:_SHOWN]) + (", ..." if len(there) > _SHOWN else "")
    given = " ".join(f"{options[name]} COLUMN" for name in missing if options and name in options)
    advice = f"; give {given}{hint}" if given else ""
    raise DataError(
        f"no column {', '.join(map(repr, missing))}; the columns are: {shown}{advice}", path=path
    )


def _paths(value: Any, prefix: str = "", depth: int = 4) -> Iterator[str]:
    value = unpacked(value)
    if isinstance(value, Mapping) and value and depth:
        for key, inner in value.items():
            yield from _paths(inner, f"{prefix}.{key}".lstrip("."), depth - 1)
    elif prefix:
        yield prefix
