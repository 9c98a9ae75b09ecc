"""Tables and their required columns."""

import pandas as pd
import pytest

from lengthwise.errors import DataError
from scheduler_adapters.workload.table_files import read_table

TABLE = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})


def test_a_missing_column_is_named_beside_those_that_are_there(tmp_path):
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.csv", ["b"]), TABLE)
    with pytest.raises(DataError, match=r"t\.csv: no column 'c'; the columns are: a, b"):
        read_table(tmp_path / "t.csv", ["a", "c"])
