"""Tables of files: parquet, CSV, JSON and logs of requests, read and written whole."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from lengthwise.errors import DataError
from lengthwise.tables import reading
from lengthwise.tables.columns import require_columns
from lengthwise.tables.reading import OnBadRows


def read_table(
    path: Path,
    columns: Sequence[str] = (),
    *,
    paths: Sequence[str] = (),
    on_bad_rows: OnBadRows = "error",
) -> pd.DataFrame:
    """Return the table of a file with at least these columns; `lengthwise.tables` reads it.

    `paths` that are no columns are looked up in the cells (`usage.completion_tokens`).

    Raises:
        DataError: no such file, another format, or a column is missing.
    """
    table = reading.read_table(path, columns=paths, on_bad_rows=on_bad_rows)
    require_columns(table, columns, path)
    return table


def write_whole(path: Path, write: Callable[[Path], object], *, make_folder: bool = False) -> Path:
    """Let `write` fill a file beside `path` and move it there: it appears whole or not at all.

    Raises:
        DataError: the place cannot be written.
    """
    part = path.with_name(f".part-{path.name}")
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        part.replace(path)
    except OSError as error:
        if path.parent.is_dir():
            part.unlink(missing_ok=True)
        raise DataError(f"cannot be written ({error}); choose another place", path=path) from error
    return path
