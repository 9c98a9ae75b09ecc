"""Tables: three formats, and refused columns."""

import pandas as pd
import pytest

from lengthwise.errors import DataError
from scheduler_adapters.workload.table_files import read_table

TABLE = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".jsonl", ".ndjson"])
def test_every_format_reads_as_the_same_table(tmp_path, suffix):
    path = tmp_path / f"t.x{suffix}"
    if "json" in suffix:
        TABLE.to_json(path, orient="records", lines=True)
    elif suffix == ".parquet":
        TABLE.to_parquet(path)
    else:
        TABLE.to_csv(path, index=False)
    pd.testing.assert_frame_equal(read_table(path, ["b"]), TABLE)


def test_a_missing_column_is_named_beside_those_that_are_there(tmp_path):
    TABLE.to_csv(tmp_path / "t.csv")
    with pytest.raises(DataError, match=r"t\.csv: no column 'c'; the columns are: .*a, b"):
        read_table(tmp_path / "t.csv", ["a", "c"])


@pytest.mark.parametrize(("name", "why"), [("t.parquet", "cannot be read"), ("t.xlsx", "format")])
def test_a_file_that_is_no_table_is_refused(tmp_path, name, why):
    (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(DataError, match=why):
        read_table(tmp_path / name)
