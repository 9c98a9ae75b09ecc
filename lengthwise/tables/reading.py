"""The one path from files to requests: bytes, rows, columns under our names.

    log = read_log("gateway.jsonl.zst")
    log.frame                                        # prompt, output_tokens, model, arrival_s
    log.left_out                                     # {"status is 'failure'": 12}

`read_table` gives the columns of a plain table as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lengthwise.errors import DataError, raised_as
from lengthwise.tables.checks import Checks
from lengthwise.tables.columns import NO_ROWS, Columns, Log
from lengthwise.tables.files import BadRow, Paths, Row, files_of, kind_of, opened
from lengthwise.tables.gateways.formats import TABLE, VLLM, recognise
from lengthwise.tables.gateways.vllm_log import vllm_rows
from lengthwise.tables.options import ReadingOptions
from lengthwise.tables.requests import LoggedRequest, Reading, RequestReader, no_column
from lengthwise.tables.rows import batches_of, good_rows, lines_of, rows_of

if TYPE_CHECKING:
    import pandas as pd

_PLAIN: Final = frozenset(("prompt", "output_tokens"))
"""Columns of a table that is no log."""
_INPUT: Final = (
    "it is the input of a batch, without lengths; give the file of its results beside it"
)
_SAMPLE: Final = 50
"""Rows that decide about the format."""

_log = logging.getLogger(__name__)


def read_log(
    names: Paths,
    options: ReadingOptions | None = None,
    *,
    needs: Sequence[str] = ("prompt", "output_tokens"),
    wants: Sequence[str] = (),
    extras: Mapping[str, Sequence[str]] | None = None,
    is_lenient: bool = False,
) -> Log:
    """Return the requests of a log or table, in order of arrival where the times are known.

    Args:
        names: files, folders, patterns, or "-" for the standard input, as one log.
        needs: our columns without which a row is bad.
        wants: our columns that are missing in some rows only.
        extras: further column -> its names in a plain table; absent ones are left out.
        is_lenient: what needs an option becomes a warning, for an inspection.

    Raises:
        DataError: an absent, empty or damaged file, another format, a missing column, a bad row
            that is not to be skipped, times of unknown unit, or no row at all.
    """
    reading = Reading(
        options=options or ReadingOptions(),
        needs=needs,
        wants=wants,
        extras=dict(extras or {}),
        is_lenient=is_lenient,
    )
    columns, checks, files = Columns(reading), Checks(reading), files_of(names)
    for reader, rows in _readers(reading, files):
        columns.readers.append(reader)
        for number, row in enumerate(rows):
            found = reader.read(row)
            if isinstance(found, LoggedRequest):
                reason = checks.reason_against(found)
                if reason is None:
                    columns.add(found, number)
                found = reason or found
            if not isinstance(found, LoggedRequest):
                reading.leave_out(found, reader.path, number)
            if reading.bad is not None and (columns.rows or columns.frames):
                raise reading.bad
    log = columns.finish(files)
    for number, line in enumerate([] if is_lenient else log.short_form()):
        _log.log(logging.WARNING if number == 2 and log.warnings else logging.INFO, "%s", line)
    return log


def _readers(
    reading: Reading, files: Sequence[Path]
) -> Iterator[tuple[RequestReader, Iterable[Row | BadRow]]]:
    """Yield the rows of each file with their reader; logs of servers are one file, and last."""
    kinds = {path: kind_of(path) for path in files}
    batches = [path for path, kind in kinds.items() if kind == "json" and _is_asked(path)]
    if batches and len(batches) == len(kinds):
        raise DataError(_INPUT, path=batches[0])
    inputs = (row for path in batches for row in good_rows(path, kinds.pop(path)))
    asked = {str(row.get("custom_id")): row for row in inputs}
    for path, kind in kinds.items():
        if kind != "text":
            rows = rows_of(path, kind)
            if asked:
                rows = (
                    asked.pop(str(row.get("custom_id")), {}) | row if isinstance(row, dict) else row
                    for row in rows
                )
            sample = list(islice(rows, _SAMPLE))
            logged = [row for row in sample if isinstance(row, dict) and not row.keys() >= _PLAIN]
            found = filter(None, map(recognise, logged))
            known = min(found, key=lambda known: (known.is_table, len(known.lift)), default=TABLE)
            yield RequestReader(reading, path, known, sample), chain(sample, rows)
    reading.left_out["a request of a batch without a result"] += len(asked)
    if servers := [path for path, kind in kinds.items() if kind == "text"]:
        lines = (line for path in servers for line in lines_of(path))
        yield RequestReader(reading, servers[0], VLLM, []), vllm_rows(lines)


def _is_asked(path: Path) -> bool:
    """Return whether a file holds the requests of a batch, whose results stand in another."""
    row = next(rows_of(path, "json"), None)
    halves = {"custom_id", "body", "params", "response", "result"} & set(row or ())
    return halves in ({"custom_id", "body"}, {"custom_id", "params"})


def read_table(path: str | PathLike[str], columns: Sequence[str] = ()) -> pd.DataFrame:
    """Return the rows of one plain table with its own columns, at least one row.

    Args:
        columns: columns that must be there.

    Raises:
        DataError: an absent, empty or damaged file, another format, a bad row, or a missing column.
    """
    import pandas as pd

    path = Path(path)
    kind = kind_of(path)
    text = f"cannot be read as {kind} ({{}}); give a whole file of that format"
    with raised_as(DataError, text, OSError, ValueError, path=path):
        if kind == "parquet":
            # A stored index of pandas would take the place of the row numbers.
            frames = [batch.to_pandas(ignore_metadata=True) for batch in batches_of(path)]
            frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
        elif kind == "csv":
            with opened(path) as stream:
                frame = pd.read_csv(stream)
        else:
            frame = pd.DataFrame(good_rows(path, "json"))
    if frame.empty:
        raise DataError(NO_ROWS, path=path)
    require_columns(frame, columns, path)
    return frame


def require_columns(frame: pd.DataFrame, names: Sequence[str], path: str | Path | None) -> None:
    """Raise DataError, which lists the columns, unless a table has all of these."""
    if missing := [name for name in dict.fromkeys(names) if name not in frame]:
        raise DataError(no_column(missing, map(str, frame.columns)), path=path)
