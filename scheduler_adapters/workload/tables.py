"""Tables of files: parquet, CSV and JSON lines, read and written whole."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from scoring_service.errors import DataError


def read_table(
    path: Path, columns: Sequence[str] = (), *, text: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the table of a .parquet, .csv, .csv.gz or .jsonl file with at least these columns.

    JSON says nothing of types: columns of `text` stay text where all values look like numbers.

    Raises:
        DataError: no such file, another format, or a column is missing.
    """
    readers: dict[str, Callable[[Path], pd.DataFrame]] = {
        ".parquet": pd.read_parquet,
        ".csv": pd.read_csv,
        ".jsonl": lambda path: pd.read_json(
            path, lines=True, dtype=dict.fromkeys(text, str) or None
        ),
    }
    reader = readers.get(Path(path.name.removesuffix(".gz")).suffix.replace("ndjson", "jsonl"))
    if reader is None:
        raise DataError("has no known format; use .csv, .csv.gz, .parquet or .jsonl", path=path)
    try:
        table = reader(path)
    except (OSError, ValueError) as error:
        raise DataError(
            f"cannot be read ({error}); give a whole file of the format its suffix names", path=path
        ) from error
    for name in columns:
        if name not in table:
            there = ", ".join(map(str, table.columns))
            raise DataError(f"no column {name!r}; there are {there}", path=path)
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
