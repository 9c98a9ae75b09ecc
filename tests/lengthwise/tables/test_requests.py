"""Requests of rows: the columns and paths that options name, and the rows of one model."""

import re

import pandas as pd
import pytest

from lengthwise.errors import DataError
from lengthwise.tables.options import RecordOptions, TraceOptions
from lengthwise.tables.reading import read_log
from tests.lengthwise.tables import logs
from tests.lengthwise.tables.logs import write_lines


def test_rows_of_one_model_may_be_chosen(tmp_path):
    rows = [logs.chat("one", 5), logs.chat("two", 6)]
    rows[1]["request"]["model"] = "other"
    found = read_log(write_lines(tmp_path / "log.jsonl", rows), RecordOptions(model="other"))
    assert found.frame.prompt.tolist() == ["two"]
    assert found.left_out == {"a model other than other": 1}


def test_paths_lead_into_tables_and_logs(tmp_path):
    rows = [{"q": {"text": f"p{n}"}, "n": {"out": n}} for n in range(1, 4)]
    named = TraceOptions(prompt_column="q.text", length_column=("n.out",))
    write_lines(tmp_path / "t", rows)
    pd.DataFrame(rows).to_parquet(tmp_path / "t.parquet")
    for name in ("t", "t.parquet"):
        found = read_log(tmp_path / name, named).frame[["prompt", "output_tokens"]]
        assert found.values.tolist() == [["p1", 1], ["p2", 2], ["p3", 3]]
    path = write_lines(tmp_path / "log.jsonl", logs.OPENAI[:2])
    named = TraceOptions(length_column=("response.usage.total_tokens",))
    assert read_log(path, named).frame.output_tokens.tolist() == [19, 29]


def test_a_missing_column_is_named_beside_the_columns_there_are(tmp_path):
    row = {"id": "x", "my question": "why?", "meta": {"stats": {"in": 3, "reply_tokens": 4}}}
    path = write_lines(tmp_path / "t.jsonl", [row])
    text = (
        "no column 'prompt', 'output_tokens'; the columns are: id, 'my question', meta.stats.in, "
        "meta.stats.reply_tokens; give --prompt-column COLUMN --length-column COLUMN"
    )
    with pytest.raises(DataError, match=re.escape(text)):
        read_log(path)
    with pytest.raises(DataError, match=r"no column 'model'; .*give --model-column COLUMN"):
        read_log(
            path, RecordOptions(prompt_column="id", length_column=("meta.stats.in",), model="m")
        )
