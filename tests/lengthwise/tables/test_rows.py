"""Rows of CSV, JSON and Parquet, and what stands in the place of a damaged one."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lengthwise.errors import DataError
from lengthwise.tables.files import BadRow, Row
from lengthwise.tables.rows import rows_of

ROWS = [{"a": 1}, {"a": "\u2028"}]
LINES = "\n".join(json.dumps(row) for row in ROWS)


def rows(folder: Path, text: str, encoding: str = "utf-8") -> list[Row | BadRow]:
    (folder / "x.json").write_bytes(text.encode(encoding))
    return list(rows_of(folder / "x.json", "json"))


@pytest.mark.parametrize(
    "text",
    [
        LINES,
        "\ufeff" + LINES + "\n\n",
        LINES.replace("\n", "\r\n"),
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        "\n".join(json.dumps(row, indent=2) for row in ROWS),
        json.dumps({"data": ROWS, "meta": {"page": 1}}),
        json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [row]}]} for row in ROWS]}),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_rows_are_found_in_every_way_to_write_json(tmp_path, text, encoding):
    assert rows(tmp_path, text, encoding) == ROWS


def test_an_array_larger_than_a_block_is_read_in_parts(tmp_path):
    long = [{"a": "x" * 700_000}, {"a": "y" * 2_500_000}, {"a": 3}]
    assert rows(tmp_path, json.dumps(long)) == long


def test_a_broken_line_is_a_bad_row_and_a_broken_file_an_error(tmp_path):
    good, broken, number = rows(tmp_path, '{"a": 1}\n{"a"\n7\n')
    assert good == {"a": 1}
    assert isinstance(broken, BadRow)
    assert number == BadRow("it is 7, no JSON object")
    assert isinstance(rows(tmp_path, '{"a"\n{"a": 1}\n{"a": 2}')[0], BadRow)
    for cut in ('[{"a": 1}, {"a"', '[{"a": 1},', '[{"a": 1}'):
        with pytest.raises(DataError, match=r"x\.json: cannot be read as JSON: .*whole file"):
            rows(tmp_path, cut)


def test_cells_of_a_csv_are_texts_and_their_number_is_checked(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('a;b\n1;"x\ny"\n2\n;3\n')
    assert list(rows_of(path, "csv")) == [
        {"a": "1", "b": "x\ny"},
        BadRow("it has 1 cells below 2 columns"),
        {"b": "3"},
    ]
    path.write_text("a,a\n1,2\n")
    with pytest.raises(DataError, match="two columns are named 'a'"):
        list(rows_of(path, "csv"))


def test_columns_of_parquet_are_one_each_and_its_texts_are_text(tmp_path):
    path, values = tmp_path / "x.parquet", pa.array([b"\xff", b"b"])
    texts = pa.StringArray.from_buffers(2, *values.buffers()[1:])
    pq.write_table(pa.table({"a": texts, "n": [1, 2]}), path)
    assert list(rows_of(path, "parquet")) == [{"a": "\udcff", "n": 1}, {"a": "b", "n": 2}]
    pq.write_table(pa.table([[1], [2]], names=["a", "a"]), path)
    with pytest.raises(DataError, match="two columns are named 'a'; rename one"):
        list(rows_of(path, "parquet"))
