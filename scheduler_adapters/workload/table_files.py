"""Files of tables with required columns: parquet, CSV, JSON and logs of requests."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lengthwise.tables import reading
from lengthwise.tables.reading import require_columns


def read_table(path: Path, columns: Sequence[str] = ()) -> pd.DataFrame:
    """Return the table of a file with at least these columns.

    Raises DataError for an absent file, another format, or a missing column.
    """
    table = reading.read_table(path)
    require_columns(table, columns, path)
    return table
