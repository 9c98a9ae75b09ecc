"""Traces: the columns of public formats, and the files that are refused."""

import logging
from pathlib import Path

import pandas as pd
import pytest

from lengthwise.errors import DataError
from scheduler_adapters.workload.traces import read_trace


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_columns_of_a_public_trace_are_read_by_their_names(tmp_path):
    path = written(tmp_path, "num_prefill_tokens,num_decode_tokens,arrival_s\n5,7,0\n6,8,1.5\n")
    requests = read_trace(path)
    assert requests.prompt_tokens.tolist() == [5, 6]
    assert requests.output_tokens.tolist() == [7, 8]
    assert requests.arrival_s.tolist() == [0.0, 1.5]


def test_a_trace_without_times_says_so(tmp_path, caplog):
    rows = "prompt_tokens,output_tokens\n0,3,4\n1500,3,4\n"
    with caplog.at_level(logging.INFO):
        assert not read_trace(written(tmp_path, f"sent,{rows}")).arrival_s.any()
    assert "has no arrival times: all requests arrive at 0 s" in caplog.text


def test_a_trace_that_is_cut_says_so(tmp_path, caplog):
    path = written(tmp_path, "arrival_s,prompt_tokens,output_tokens\n" + "0,3,4\n" * 5)
    with caplog.at_level(logging.INFO):
        assert len(read_trace(path, limit=5)) == 5
        assert "the first" not in caplog.text
        assert len(read_trace(path, limit=3)) == 3
    assert "the first 3 of 5 requests" in caplog.text


COUNTS = "prompt_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{COUNTS}3,4\n3,\n", "trace.csv, row 1: it has no output_tokens"),
        (f"request_id,{COUNTS}a,3,4\nb,3,4\nb,3,9\n", "row 2: request_id is repeated"),
        ("prompt,output_tokens\nhello,3\n", "no column 'prompt_tokens'.*--scores bundle:PATH"),
        (
            "prompt,length\nhello,3\n",
            "no column 'prompt_tokens', 'output_tokens'; .* prompt, length; give --prompt",
        ),
    ],
)
def test_a_trace_that_cannot_be_read_says_why(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(DataError, match=message):
        read_trace(path)


def test_a_prompt_may_be_there_twice(tmp_path):
    path = written(tmp_path, f"prompt_id,{COUNTS}7,3,4\n7,3,9\n")
    assert read_trace(path).request_id.tolist() == ["0", "1"]


def test_a_missing_class_is_no_class(tmp_path):
    path = written(tmp_path, f"user_class,{COUNTS}paying,5,7\n,6,8\n")
    assert read_trace(path).user_class.tolist() == ["paying", ""]
    columns = {"prompt_tokens": [5, 6], "output_tokens": [7, 8], "user_class": ["paying", None]}
    pd.DataFrame(columns).to_parquet(path := tmp_path / "trace.parquet")
    assert read_trace(path).user_class.tolist() == ["paying", ""]
