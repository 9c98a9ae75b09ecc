"""The folder of measured data: the one that is given, else the one $LENGTHWISE_DATA names."""

import os
from os import PathLike
from pathlib import Path
from typing import Final

from lengthwise.errors import ConfigError, DataError

ENVIRONMENT: Final = "LENGTHWISE_DATA"
DataDir = str | PathLike[str] | None
"""A folder; None: the one the environment names."""


def data_file(relative: str, data_dir: DataDir = None) -> Path:
    """Return the path of the file or folder `relative` of the measured data.

    Raises:
        ConfigError: neither `data_dir` nor the environment names a folder.
        DataError: the folder does not hold it.
    """
    folder = os.environ.get(ENVIRONMENT) if data_dir is None else data_dir
    if not folder:
        raise ConfigError(
            f"measured data is needed ({relative}) but no folder is named; "
            f"pass --data-dir or set ${ENVIRONMENT}"
        )
    path = Path(folder) / relative
    if not path.exists():
        raise DataError(
            f"no such file or folder; point --data-dir or ${ENVIRONMENT} at the folder that "
            f"holds {relative.partition('/')[0]}/",
            path=path,
        )
    return path
