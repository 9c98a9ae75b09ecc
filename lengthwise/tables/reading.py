"""The reader of tables and logs: plain tables keep their columns, logs get ours.

    frame = read_table(Path("gateway.jsonl.zst"), load)        # prompt, output_tokens, model, ...
    frame = read_table(Path("chats.json"), load, columns=("question", "usage.completion_tokens"))

The index of a frame is the number of its row in the file, from 0.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from lengthwise.errors import DataError
from lengthwise.tables.files import (
    BadRow,
    Kind,
    Row,
    content_of,
    json_rows,
    kind_of,
    plain_file,
)
from lengthwise.tables.formats import LogFormat, recognise, standard_row, unanswered
from lengthwise.tables.values import value_at
from lengthwise.tables.vllm_log import VLLM, vllm_rows

if TYPE_CHECKING:
    import pandas as pd

OnBadRows = Literal["error", "skip"]
"""What a row that cannot be used does: end the command, or be left out and counted."""
Load = Callable[[Path, Kind], "pd.DataFrame"]
"""Reads a parquet or CSV file."""

SKIP: Final = (
    "mend the row, or leave out every bad row with --on-bad-rows skip (of fit: --data.on-bad-rows)"
)
NO_ROWS: Final = "the table has no rows; give some"
OURS: Final = (
    *("prompt", "output_tokens", "prompt_tokens", "reasoning_tokens", "answer_tokens"),
    *("model", "arrival_s"),
)
"""The columns of a log."""
_PLAIN: Final = frozenset(("prompt", "output_tokens"))
"""A table that has both under these names is no log."""
_SAMPLE: Final = 50
"""Rows that are looked at to recognise a format."""

log = logging.getLogger(__name__)


def read_table(
    path: Path, load: Load, *, columns: Sequence[str] = (), on_bad_rows: OnBadRows = "error"
) -> pd.DataFrame:
    """Return the rows of a table or log, at least one.

    A log of a known format gets the columns prompt, output_tokens and model, and where it has them
    prompt_tokens, reasoning_tokens, answer_tokens and arrival_s (seconds from the first request, by
    which its rows are sorted); a plain table keeps its own. `columns` that the table lacks are
    looked up as paths (`usage.completion_tokens`); others are left for the caller to miss.

    Raises:
        DataError: no such file, another format, empty, damaged, or a row that is no JSON object.
    """
    import pandas as pd

    kind = kind_of(path)
    if kind == "text":
        text = content_of(path).decode(errors="replace")
        return _frame_of_log(dict(enumerate(vllm_rows(text))), path, VLLM)
    if kind == "json":
        rows = _good(json_rows(content_of(path), path), path, on_bad_rows)
        known = _format_of(rows.values())
    else:
        with plain_file(path) as plain:
            frame = load(plain, kind)
        known = _format_of(_rows_of(frame.head(_SAMPLE)).values())
        rows = {} if known is None else _rows_of(frame)
    if known is not None:
        answered = _answered(rows, known, path)
        own = [name for name in columns if name not in OURS]
        ours = {n: standard_row(row, known) | _named(row, own) for n, row in answered.items()}
        return _frame_of_log(ours, path, known, own)
    if kind == "json":
        frame = pd.DataFrame(list(rows.values()), index=list(rows))
    if frame.empty:
        raise DataError(NO_ROWS, path=path)
    return _with_paths(frame, columns)


def say_left_out(reasons: Counter[str], num_rows: int, path: str | Path | None) -> None:
    """Log how many bad rows were left out, and why."""
    if count := reasons.total():
        told = ", ".join(f"{times} because {why}" for why, times in (+reasons).most_common(5))
        log.warning("%s: %d of %d rows left out: %s", path, count, num_rows, told)


def _good(rows: Sequence[Row | BadRow], path: Path, on_bad_rows: OnBadRows) -> dict[int, Row]:
    """Return the rows that could be read, by their number in the file."""
    reasons: Counter[str] = Counter()
    for number, row in enumerate(rows):
        if isinstance(row, BadRow) and on_bad_rows == "error":
            raise DataError(f"{row}; {SKIP}", path=path, row=number)
        reasons.update([row.partition(" (")[0]] if isinstance(row, BadRow) else [])
    say_left_out(reasons, len(rows), path)
    return {number: row for number, row in enumerate(rows) if not isinstance(row, BadRow)}


def _rows_of(frame: pd.DataFrame) -> dict[int, Row]:
    """Return the rows of a frame without their missing values."""
    rows = zip(frame.index, frame.to_dict("records"), strict=True)
    return {
        number: {str(key): cell for key, cell in row.items() if not _is_missing(cell)}
        for number, row in rows
    }


def _is_missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, float) and isnan(cell))


def _format_of(rows: Iterable[Row]) -> LogFormat | None:
    sample = [row for row in islice(rows, _SAMPLE) if not row.keys() >= _PLAIN]
    return next((known for known in map(recognise, sample) if known is not None), None)


def _named(row: Row, columns: Sequence[str]) -> Row:
    """The values at the paths that were asked for."""
    values = ((name, value_at(row, name)) for name in columns)
    return {name: value for name, value in values if value is not None}


def _answered(rows: Mapping[int, Row], known: LogFormat, path: Path) -> dict[int, Row]:
    """Return the rows of a log that hold an answer; the others are counted and logged."""
    why = {number: unanswered(row, known) for number, row in rows.items()}
    reasons = Counter(reason for reason in why.values() if reason is not None)
    told = "".join(f"; {times} without an answer: {said}" for said, times in reasons.most_common(5))
    log.info("%s is a log of %s, %d rows%s", path, known.name, len(rows), told)
    return {number: row for number, row in rows.items() if why[number] is None}


def _frame_of_log(
    rows: Mapping[int, Row], path: Path, known: LogFormat, columns: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the answered requests of a log as a frame, without the columns that hold nothing."""
    import pandas as pd

    if not rows:
        raise DataError(f"no answered request in this log of {known.name}; give some", path=path)
    frame = pd.DataFrame(list(rows.values()), index=list(rows)).dropna(axis="columns", how="all")
    for name, hint in {
        "prompt": known.without_prompt,
        "output_tokens": known.without_length,
    }.items():
        if name not in frame and not columns:
            raise DataError(f"no {name} in this log of {known.name}; {hint}", path=path)
    if "reasoning_tokens" in frame:
        frame["reasoning_tokens"] = frame.reasoning_tokens.fillna(0)
        frame["answer_tokens"] = frame.output_tokens - frame.reasoning_tokens
    if "model" in frame:
        frame["model"] = frame.model.fillna("")
    if "arrival_s" in frame and frame.arrival_s.isna().any():
        log.info("%s: %d rows have no time", path, frame.arrival_s.isna().sum())
        del frame["arrival_s"]
    elif "arrival_s" in frame:
        frame["arrival_s"] -= frame.arrival_s.min()
        frame = frame.sort_values("arrival_s", kind="stable")
    if "output_tokens" not in frame:
        return frame
    empty = frame.output_tokens == 0
    if empty.any():
        log.info("%s: %d rows with an output of 0 tokens left out", path, empty.sum())
    return frame[~empty]


def _with_paths(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return the frame with the columns that are paths into cells of its own."""
    for name in columns:
        top = name.partition(".")[0]
        if name not in frame and top in frame:
            values = [value_at({top: cell}, name) for cell in frame[top]]
            frame = frame.assign(**{name: values})
    return frame
