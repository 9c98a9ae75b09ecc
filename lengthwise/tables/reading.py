"""The one path from a file to a data frame: plain tables keep their columns, logs get ours.

    frame = read_table("gateway.jsonl.zst")                     # prompt, output_tokens, model
    frame = read_table("chats.json", columns=("question", "usage.completion_tokens"))

The index of a frame is the number of its row in the file, from 0.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import islice
from math import isnan
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from lengthwise.errors import DataError
from lengthwise.tables.files import COMPRESSED, BadRow, Kind, Row, content_of, json_rows, kind_of
from lengthwise.tables.formats import LogFormat, recognise, standard_row, unanswered
from lengthwise.tables.values import unpacked, value_at
from lengthwise.tables.vllm_log import VLLM, vllm_rows

if TYPE_CHECKING:
    import pandas as pd

OnBadRows = Literal["error", "skip"]
"""Effect of a bad row: an error that ends the command, or a row that is left out and counted."""

SKIP: Final = (
    "mend the row, or leave out every bad row with --on-bad-rows skip (of fit: --data.on-bad-rows)"
)
NO_ROWS: Final = "the table has no rows; give some"
OURS: Final = (
    *("prompt", "output_tokens", "prompt_tokens", "reasoning_tokens", "answer_tokens"),
    *("model", "arrival_s"),
)
"""Columns of a log."""
_PLAIN: Final = frozenset(("prompt", "output_tokens"))
"""Columns of a table that is no log."""
_SAMPLE: Final = 50
"""Rows that decide about the format."""

PROMPT, LENGTH, MODEL = "--prompt-column", "--length-column", "--model-column"
PROMPT_TOKENS, ARRIVAL = "--prompt-tokens-column", "--arrival-column"
_SHOWN: Final = 30

log = logging.getLogger(__name__)


def read_table(
    path: str | PathLike[str],
    *,
    columns: Sequence[str] = (),
    on_bad_rows: OnBadRows = "error",
) -> pd.DataFrame:
    """Return the rows of a table or log, at least one.

    A plain table keeps its columns. A log of a known format has the columns prompt, output_tokens
    and model. Where the log has them, prompt_tokens, reasoning_tokens, answer_tokens and arrival_s
    (seconds since the first request, the order of the rows) follow.

    Args:
        columns: further columns as paths (`usage.completion_tokens`); absent ones are left out.
        on_bad_rows: effect of a row that is no JSON object.

    Raises:
        DataError: an absent, empty or damaged file, another format, or a bad row.
    """
    import pandas as pd

    path = Path(path)
    kind = kind_of(path)
    if kind in ("parquet", "csv"):
        frame = _frame_of(path, kind)
        known = _format_of(_rows_of(frame.head(_SAMPLE)).values())
        rows = {} if known is None else _rows_of(frame)
    else:
        content, is_json = content_of(path), kind == "json"
        lines = content.decode(errors="replace").split("\n")
        read = (
            json_rows(content, path)
            if is_json
            else [row for row in vllm_rows(lines) if "left_out" not in row]
        )
        rows = _good_rows(read, path, on_bad_rows)
        known = _format_of(rows.values()) if is_json else VLLM
        if known is None:
            frame = pd.DataFrame(list(rows.values()), index=list(rows))
    if known is not None:
        return _frame_of_log(rows, path, known, [name for name in columns if name not in OURS])
    if frame.empty:
        raise DataError(NO_ROWS, path=path)
    for name in columns:
        top = name.partition(".")[0]
        if name not in frame and top in frame:  # a path into the cells of a column
            values = [value_at({top: cell}, name) for cell in frame[top]]
            frame = frame.assign(**{name: values})
    return frame


def _frame_of(path: Path, kind: Kind) -> pd.DataFrame:
    import pandas as pd
    import pyarrow.parquet as pq

    source = BytesIO(content_of(path)) if path.suffix in COMPRESSED else path
    try:
        if kind == "csv":
            return pd.read_csv(source)
        # A stored index of pandas would take the place of the row numbers.
        frame: pd.DataFrame = pq.ParquetFile(source).read().to_pandas(ignore_metadata=True)
        return frame
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"cannot be read as {kind} ({reason}); give a whole file of that format", path=path
        ) from error


def log_left_out(reasons: Counter[str], num_rows: int, path: str | Path | None) -> None:
    """Log the number of bad rows that were left out, and the reasons."""
    if count := reasons.total():
        most = ", ".join(f"{times} because {why}" for why, times in (+reasons).most_common(5))
        log.warning("%s: %d of %d rows left out: %s", path, count, num_rows, most)


def _good_rows(rows: Sequence[Row | BadRow], path: Path, on_bad_rows: OnBadRows) -> dict[int, Row]:
    bad = {number: row for number, row in enumerate(rows) if isinstance(row, BadRow)}
    if bad and on_bad_rows == "error":
        number, reason = next(iter(bad.items()))
        raise DataError(f"{reason}; {SKIP}", path=path, row=number)
    log_left_out(Counter(row.partition(" (")[0] for row in bad.values()), len(rows), path)
    return {number: row for number, row in enumerate(rows) if not isinstance(row, BadRow)}


def _rows_of(frame: pd.DataFrame) -> dict[int, Row]:
    return {
        number: {
            str(key): cell
            for key, cell in row.items()
            if cell is not None and not (isinstance(cell, float) and isnan(cell))
        }
        for number, row in zip(frame.index, frame.to_dict("records"), strict=True)
    }


def _format_of(rows: Iterable[Row]) -> LogFormat | None:
    sample = [row for row in islice(rows, _SAMPLE) if not row.keys() >= _PLAIN]
    return next((known for known in map(recognise, sample) if known is not None), None)


def _frame_of_log(
    rows: Mapping[int, Row], path: Path, known: LogFormat, own: Sequence[str]
) -> pd.DataFrame:
    import pandas as pd

    why = {number: unanswered(row, known) for number, row in rows.items()}
    reasons = Counter(reason for reason in why.values() if reason is not None)
    most = "".join(f"; {n} without an answer: {reason}" for reason, n in reasons.most_common(5))
    log.info("%s is a log of %s, %d rows%s", path, known.name, len(rows), most)
    answered = {number: row for number, row in rows.items() if why[number] is None}
    if not answered:
        raise DataError(f"no answered request in this log of {known.name}; give some", path=path)
    ours = [
        standard_row(row, known) | {name: value_at(row, name) for name in own}
        for row in answered.values()
    ]
    frame = pd.DataFrame(ours, index=list(answered)).dropna(axis="columns", how="all")
    hints = {"prompt": known.without_prompt, "output_tokens": known.without_length}
    for name, hint in hints.items():
        if name not in frame and not own:
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
    if "output_tokens" in frame and (empty := frame.output_tokens == 0).any():
        log.info("%s: %d rows with an output of 0 tokens left out", path, empty.sum())
        frame = frame[~empty]
    return frame


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
