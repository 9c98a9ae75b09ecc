"""One path from files to requests: what is kept, left out, refused, and a warning."""

import json
import logging
from pathlib import Path

import pandas as pd
import pytest

from lengthwise.errors import DataError
from lengthwise.tables.options import TraceOptions
from lengthwise.tables.reading import read_log, read_table, require_columns
from tests.lengthwise.tables import logs
from tests.lengthwise.tables.logs import write_lines

SKIP, TEN = TraceOptions(on_bad_rows="skip"), "2026-03-01T10:00:00"


def test_a_log_has_our_names_in_order_of_arrival(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        frame = read_log(write_lines(tmp_path / "log.jsonl", logs.LANGFUSE)).frame
    assert frame.to_dict("list") == {
        "prompt": ["one", "two"],
        "output_tokens": [11, 30],
        "prompt_tokens": [4, 5],
        "reasoning_tokens": [0, 24],
        "answer_tokens": [11, 6],
        "model": ["m", "m"],
        "arrival_s": [0, 1.75],
    }
    assert list(frame.index) == [2, 1]  # rows of the file
    assert "Langfuse, 2 of 3 rows; left out: 1 type is 'SPAN'" in caplog.text
    assert len(caplog.messages) == 3


def test_a_log_in_a_csv_or_parquet_file_is_read_alike(tmp_path):
    expected = read_log(write_lines(tmp_path / "log.jsonl", logs.LITELLM)).frame
    rows = [
        {key: json.dumps(v) if isinstance(v, dict | list) else v for key, v in row.items()}
        for row in logs.LITELLM
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "log.csv", index=False)
    pd.testing.assert_frame_equal(read_log(tmp_path / "log.csv").frame, expected)
    pd.DataFrame(logs.OPENAI[:2]).to_parquet(tmp_path / "log")
    assert read_log(tmp_path / "log").frame.prompt.tolist() == ["one", "two"]


@pytest.mark.parametrize(
    ("row", "advice"),
    [
        ({k: v for k, v in logs.LITELLM[1].items() if k != "messages"}, "store_prompts_in_spend"),
        ({"request": logs.OPENAI[0]["request"], "response": {"choices": []}}, "include_usage"),
        ({"conversations": [{"from": "human", "value": "a"}]}, "--tokenizer"),
        ({"ContextTokens": 5, "GeneratedTokens": 3}, "a trace of lengths has none"),
        (
            logs.LITELLM[1] | {"messages": [{"role": "user", "content": "redacted-by-litellm"}]},
            "turn_off_message_logging",
        ),
    ],
)
def test_a_log_without_prompts_or_lengths_says_what_to_do(tmp_path, row, advice):
    for options in (None, SKIP):
        with pytest.raises(DataError, match=rf"log\.jsonl.*{advice}"):
            read_log(write_lines(tmp_path / "log.jsonl", [row]), options)


def test_doubts_about_times_are_warnings(tmp_path):
    columns = [[0, 4], [3, 6], [f"{TEN}Z", f"{TEN}.5"], [TEN, 1772359201], [TEN, f"{TEN}.5"]]
    paths = [
        write_lines(tmp_path / f"{n}.jsonl", [{"output_tokens": 1, "timestamp": t} for t in times])
        for n, times in enumerate(columns)
    ]

    def doubt(*of: Path) -> str:
        options, needs = TraceOptions(time_unit="s"), ("output_tokens", "arrival_s")
        return ", ".join(read_log(of, options, needs=needs).warnings)

    assert doubt(*paths[:2]).startswith("files overlap in time and are read as pieces of one log")
    for path in paths[2:4]:
        assert doubt(path) == "1 times without a zone among others, read as UTC"
    assert doubt(paths[0]) == doubt(paths[1]) == doubt(paths[4]) == ""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("logs.parquet", b"", "is empty"),
        ("logs.csv", b"prompt,output_tokens\n", "no rows"),
        ("logs.parquet", b"not parquet at all", "cannot be read as parquet"),
        ("logs.json", b'[{"prompt": "a"', "cannot be read as JSON"),
        ("logs.xlsx", b"PK\x03\x04", "'.xlsx' is unknown"),
        ("logs.csv", b"PK\x03\x04", "it is no text, but an archive"),
        ("logs.csv", "prompt,output_tokens\na,1\n".encode("utf-16-le"), "UTF-16 without its mark"),
        ("t.json", b"[]", "no rows"),
    ],
)
def test_a_file_that_holds_no_table_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    for read in (read_log, read_table):
        with pytest.raises(DataError, match=message):
            read(tmp_path / name)


def test_a_plain_table_keeps_its_own_columns(tmp_path):
    frame = pd.DataFrame({"b": [1, 2], "a": ["x", None]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        read = read_table(tmp_path / name, ["a"])
        assert (list(read), read.b.tolist()) == (["b", "a"], [1, 2])
    with pytest.raises(DataError, match=r"no column 'c'; the columns are: b, a$"):
        require_columns(frame, ["a", "c"], "logs")
