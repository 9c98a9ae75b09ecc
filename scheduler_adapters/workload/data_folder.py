"""Folder of measured data: the given one, else that of $LENGTHWISE_DATA."""

import os
from os import PathLike
from pathlib import Path
from typing import Final

from lengthwise.errors import ConfigError, DataError

ENVIRONMENT: Final = "LENGTHWISE_DATA"
DataDir = str | PathLike[str] | None
"""A folder; None: the one in the environment."""


def data_file(relative: str, data_dir: DataDir = None) -> Path:
    """Return the path of the file or folder `relative` of the measured data.

    Raises ConfigError without a folder, and DataError for a file that the folder lacks.
    """
    folder = os.environ.get(ENVIRONMENT) if data_dir is None else data_dir
    if not folder:
        raise ConfigError(
            f"measured data is needed ({relative}) but no folder is named; "
            f"pass --data-dir or set ${ENVIRONMENT}"
        )
    path = Path(folder) / relative
    if not path.exists():
        advice = f"point --data-dir or ${ENVIRONMENT} at the folder that holds"
        top = relative.partition("/")[0]
        raise DataError(f"no such file or folder; {advice} {top}/", path=path)
    return path
