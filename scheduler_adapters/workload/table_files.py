"""Files of tables: parquet, CSV, JSON and logs of requests, read and written whole."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from lengthwise.errors import DataError
from lengthwise.tables import reading
from lengthwise.tables.columns import require_columns


def read_table(path: Path, columns: Sequence[str] = ()) -> pd.DataFrame:
    """Return the table of a file with at least these columns.

    Raises DataError for an absent file, another format, or a missing column.
    """
    table = reading.read_table(path)
    require_columns(table, columns, path)
    return table


def write_whole(path: Path, write: Callable[[Path], object], *, make_folder: bool = False) -> Path:
    """Write a file whole or not at all: `write` fills a file beside `path`, which takes its place.

    Raises DataError if the place cannot be written.
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
