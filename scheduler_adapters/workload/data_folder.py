"""Folder of measured data: $LENGTHWISE_DATA."""

import os
from pathlib import Path
from typing import Final

from lengthwise.errors import ConfigError, DataError

ENVIRONMENT: Final = "LENGTHWISE_DATA"


def data_file(relative: str) -> Path:
    """Return the path of the file or folder `relative` of the measured data.

    Raises ConfigError without a folder, and DataError for a file that the folder lacks.
    """
    if not (folder := os.environ.get(ENVIRONMENT)):
        raise ConfigError(
            f"measured data is needed ({relative}) but no folder is named; set ${ENVIRONMENT}"
        )
    if not (path := Path(folder) / relative).exists():
        advice = f"point ${ENVIRONMENT} at the folder that holds {relative.partition('/')[0]}/"
        raise DataError(f"no such file or folder; {advice}", path=path)
    return path
