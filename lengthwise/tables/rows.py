"""Rows of files as they stream: lines of text, CSV, JSON and Parquet."""

import csv
import io
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, AnyStr, Final

from lengthwise.errors import DataError, raised_as
from lengthwise.strict_json import require_shallow
from lengthwise.tables.files import (
    BLOCK,
    BadRow,
    Kind,
    Row,
    allowance,
    encoding_of,
    opened,
    parsed_line,
    start_of,
    undamaged,
)
from lengthwise.tables.gateways import WORDS

_MOST: Final = 1 << 24
"""Longest row in characters."""
_BATCH: Final = 128
"""Rows of Parquet in memory at once; a dictionary may give each the same long text."""
_BETWEEN: Final = re.compile(r"[\s,\[\]]*")

log = logging.getLogger(__name__)


def _lines(stream: IO[AnyStr]) -> Iterator[AnyStr]:
    """Return the lines, of which a long one is skipped and raises csv.Error."""

    def line() -> AnyStr:
        found = piece = stream.readline(_MOST)
        while len(piece) == _MOST and piece[-1:] not in ("\n", "\r", b"\n"):
            piece = stream.readline(_MOST)
        if piece is not found:
            raise csv.Error(f"it is longer than {_MOST:,} characters")
        return found

    return iter(line, stream.read(0))


def _good_and_bad(rows: Iterator[Any]) -> Iterator[Any]:
    """Yield rows, with a `BadRow` in place of each that raises csv.Error."""
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            row = BadRow(str(error))
        yield row


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a text file. Raises DataError if it is damaged."""
    encoding = encoding_of(start_of(path))
    with (
        undamaged(path),
        io.TextIOWrapper(opened(path), encoding, "replace", newline="\n") as text,
    ):
        for line in _good_and_bad(_lines(text)):
            if isinstance(line, BadRow):
                log.warning("%s: a line is left out: %s", path, line)
            else:
                yield line


def rows_of(path: Path, kind: Kind) -> Iterator[Row | BadRow]:
    """Yield the rows of JSON, CSV or Parquet.

    One object with a list of rows (under `data` or `logs`, as in a page of an API) stands for that
    list. A row that is no object becomes a `BadRow`.

    Raises DataError for a damaged file.
    """
    with undamaged(path):
        yield from {"parquet": _parquet_rows, "csv": _csv_rows, "json": _json_rows}[kind](path)


def good_rows(path: Path, kind: Kind) -> Iterator[Row]:
    """Yield the rows. Raises DataError for a bad one, or a damaged file."""
    for number, row in enumerate(rows_of(path, kind)):
        if isinstance(row, BadRow):
            raise DataError(f"{row}; mend the row", path=path, row=number)
        yield row


def _parquet_rows(path: Path) -> Iterator[Row | BadRow]:
    import pyarrow as pa

    text = "cannot be read as parquet ({}); give a whole file of that format"
    kinds = pa.ArrowException, OSError, UnicodeDecodeError
    with raised_as(DataError, text, *kinds, path=path):
        for batch in batches_of(path):
            _require_different(batch.schema.names, path)
            yield from map(_filled, _rows_of_batch(batch))


def batches_of(path: Path) -> Iterator[Any]:
    """Yield the rows of Parquet as record batches. Raises DataError if they are too large."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with opened(path) as stream:
        table = pq.ParquetFile(stream if stream.seekable() else pa.BufferReader(stream.read()))
        groups = map(table.metadata.row_group, range(table.num_row_groups))
        allowance(path)(sum(group.total_byte_size for group in groups))
        count = allowance(path)
        for batch in table.iter_batches(_BATCH):
            for column in batch.columns:
                is_packed = pa.types.is_dictionary(column.type)
                count((column.dictionary_decode() if is_packed else column).nbytes)
            yield batch


def _rows_of_batch(batch: Any) -> list[Row]:
    import pyarrow as pa

    try:
        return list(batch.to_pylist(maps_as_pydicts="lossy"))
    except UnicodeDecodeError:  # as bytes, each row is judged by itself
        is_text, names = pa.types.is_string, batch.schema.names
        columns = [c.cast(pa.binary()) if is_text(c.type) else c for c in batch.columns]
        return list(pa.RecordBatch.from_arrays(columns, names).to_pylist(maps_as_pydicts="lossy"))


def _require_different(names: Sequence[str], path: Path) -> None:
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"two columns are named {repeated[0]!r}; rename one", path=path)


def _filled(row: Row) -> Row:
    """Return the row without missing values, and with bytes as text."""
    return {
        key: value.decode(errors="surrogateescape") if type(value) is bytes else value
        for key, value in row.items()
        if value is not None and value == value
    }


def _csv_rows(path: Path) -> Iterator[Row | BadRow]:
    csv.field_size_limit(_MOST)
    encoding = encoding_of(start_of(path))
    with io.TextIOWrapper(opened(path), encoding, "surrogateescape", newline="") as text:
        first = next(filter(str.strip, _good_and_bad(_lines(text))), "")
        if isinstance(first, BadRow):
            raise DataError(f"has no header: {first}; give the names of the columns", path=path)
        by = max(",;\t|", key=first.count)
        header = next(csv.reader([first], delimiter=by))
        _require_different(header, path)
        width = len(header)
        for cells in _good_and_bad(csv.reader(_lines(text), delimiter=by)):
            if isinstance(cells, BadRow):
                yield cells
            elif len(cells) == width:
                yield {name: cell for name, cell in zip(header, cells, strict=True) if cell}
            elif cells:
                yield BadRow(f"it has {len(cells)} cells below {width} columns")


def _json_rows(path: Path) -> Iterator[Row | BadRow]:
    start = start_of(path, BLOCK)
    encoding = encoding_of(start)
    sample = [line for line in start.decode(encoding, "replace").split("\n") if line.strip()][:20]
    good = [isinstance(parsed_line(line), dict | list) for line in sample]
    if len(sample) == 1 and len(start) == BLOCK:  # a cut line
        good = [True]
    has_lines = good[0] or 2 * sum(good) >= len(good)
    if sample[0].lstrip().startswith("["):
        has_lines = all(good) and len(good) > 1
    with opened(path) as stream:
        if has_lines and encoding == "utf-8-sig":
            values: Iterator[Any] = map(parsed_line, filter(bytes.strip, _lines(stream)))
        else:
            text = io.TextIOWrapper(stream, encoding, "surrogateescape")
            lines = filter(str.strip, _lines(text))
            values = map(parsed_line, lines) if has_lines else _values(text, path)
        for value in _good_and_bad(values):
            for row in _unwrapped(value):
                is_row = isinstance(row, dict | BadRow)
                yield row if is_row else BadRow(f"it is {str(row)[:40]}, no JSON object")


def _unwrapped(value: Any) -> Iterator[Any]:
    """Yield the rows that a value of a file holds, at any depth; a row stands for itself."""
    if not isinstance(value, dict):
        yield value
        return
    names = WORDS["lists"] + WORDS["pages"] * value.keys().isdisjoint(WORDS["rows"])
    held = {key: value[key] for key in names if _holds(value.get(key), names)}
    columns = {key: x for key, x in value.items() if isinstance(x, list)}
    is_columnar = not held and {*WORDS["columns"]} <= columns.keys()
    sizes = {key: len(x) for key, x in columns.items()} if is_columnar else {}
    equal = [key for key in sizes if sizes[key] == sizes[WORDS["columns"][0]]]
    for key, inner in held.items():
        states = {"incomplete": {"status": "cancelled"}, "errored": {"status": "error"}}
        for item in inner if isinstance(inner, list) else [inner]:
            yield from _unwrapped(states.get(key, {}) | item if isinstance(item, dict) else item)
    for cells in zip(*(columns[key] for key in equal), strict=True):
        yield dict(zip(equal, cells, strict=True))
    if not held and not is_columnar:
        yield value


def _holds(value: Any, names: tuple[str, ...]) -> bool:
    is_list = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    return is_list or (isinstance(value, dict) and not value.keys().isdisjoint(names))


def _values(stream: IO[str], path: Path) -> Iterator[Any]:
    """Yield the elements of an array, or the values that follow one another in a file."""
    decode, text, place = json.JSONDecoder().raw_decode, stream.read(BLOCK), 0
    is_array, last = text.lstrip().startswith("["), ""
    while True:
        found = _BETWEEN.match(text, place)
        place = found.end() if found else place
        last = (found[0].rstrip()[-1:] if found else "") or last
        try:
            value, end = decode(text, place)
        except (ValueError, RecursionError) as error:
            if len(text) - place > _MOST:
                reason = f"has a value of more than {_MOST:,} characters; give one row per line"
                raise DataError(reason, path=path) from error
            block = stream.read(max(BLOCK, len(text) - place))
            if not block and place == len(text) and (last == "]" or not is_array):
                return
            if not block:
                reason = f"cannot be read as JSON: {error}; give a whole file"
                raise DataError(reason, path=path) from error
            text, place = text[place:] + block, 0
            continue
        place, last = end, ""
        try:
            require_shallow(value)
        except ValueError as error:
            value = BadRow(str(error))
        yield value
