"""Checks of a table's columns, whose errors name the option to give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lengthwise.errors import DataError
from lengthwise.tables.prompt_text import prompt_of
from lengthwise.tables.values import count_of, seconds_of, unpacked, value_at

if TYPE_CHECKING:
    import pandas as pd

PROMPT, LENGTH = "--prompt-column", "--length-column"
PROMPT_TOKENS, ARRIVAL = "--prompt-tokens-column", "--arrival-column"
MODEL: Final = "--model-column"
_WORDS: Final = {
    PROMPT: ("prompt", "question", "instruction", "messages", "user", "input", "text", "query"),
    LENGTH: ("completion", "output", "response", "generated", "answer", "length", "token"),
    PROMPT_TOKENS: ("prompt", "input", "context", "token"),
    ARRIVAL: ("arriv", "start", "time", "created", "date", "ts"),
    MODEL: ("model", "engine", "llm"),
}
"""Words in the names of likely columns for an option, the likeliest first."""
_FITS: Final[dict[str, Callable[[Any], object]]] = {
    PROMPT: prompt_of,
    MODEL: prompt_of,
    LENGTH: count_of,
    PROMPT_TOKENS: count_of,
    ARRIVAL: seconds_of,
}
_DEPTH: Final = 4
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
    advice = ""
    wanted = [(options or {}).get(name) for name in missing]
    if given := [f"{option} {_likely(row, there, option)}" for option in wanted if option]:
        advice = f"; give {' '.join(given)}{hint}"
    raise DataError(
        f"no column {', '.join(map(repr, missing))}; the columns are: {shown}{advice}", path=path
    )


def _paths(value: Any, prefix: str = "", depth: int = _DEPTH) -> Iterator[str]:
    value = unpacked(value)
    if isinstance(value, Mapping) and value and depth:
        for key, inner in value.items():
            yield from _paths(inner, f"{prefix}.{key}".lstrip("."), depth - 1)
    elif prefix:
        yield prefix


def _likely(row: Mapping[str, Any], paths: Sequence[str], option: str) -> str:
    fitting = [path for path in paths if _FITS[option](value_at(row, path)) is not None]
    for word in _WORDS[option]:
        for path in fitting:
            if word in path.lower():
                return path
    return fitting[0] if fitting and option in (PROMPT, LENGTH) else "COLUMN"
