"""Where measured data is looked for (a given folder, then $LENGTHWISE_DATA), and read."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import Final

import pandas as pd

from scoring_service.errors import ConfigError, DataError

ENVIRONMENT: Final = "LENGTHWISE_DATA"
DataDir = str | PathLike[str] | None
"""A folder; None: the one the environment names."""


def data_file(relative: str, data_dir: DataDir = None) -> Path:
    """The file or folder `relative` of the measured data.

    Raises:
        ConfigError: neither `data_dir` nor the environment names a folder.
        DataError: the folder does not hold it.
    """
    folder = os.environ.get(ENVIRONMENT) if data_dir is None else data_dir
    if not folder:
        raise ConfigError(
            f"measured data is needed ({relative}) but no folder is named; "
            f"pass --data_dir or set ${ENVIRONMENT}"
        )
    path = Path(folder) / relative
    if not path.exists():
        raise DataError(
            f"no such file or folder; point --data_dir or ${ENVIRONMENT} at the folder that "
            f"holds {relative.partition('/')[0]}/",
            path=path,
        )
    return path


def read_table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """Read a .parquet or .csv file that has at least these columns.

    Raises:
        DataError: it cannot be read, or a column is missing.
    """
    try:
        table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read: {error}", path=path) from error
    if missing := [name for name in columns if name not in table]:
        raise DataError(f"has no column {missing[0]!r}, only {list(table)}", path=path)
    return table
