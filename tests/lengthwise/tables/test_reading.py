"""One reader of tables and logs: standard columns, nested ones, and what happens to bad rows."""

import json
import logging
import re
from pathlib import Path

import pandas as pd
import pytest

from lengthwise.errors import DataError
from lengthwise.tables.reading import LENGTH, PROMPT, read_table, require_columns
from tests.lengthwise.tables import logs
from tests.lengthwise.tables.logs import write_lines


def test_a_log_comes_under_our_names_in_order_of_arrival(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        frame = read_table(write_lines(tmp_path / "log.jsonl", logs.LANGFUSE))
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
    assert "is a log of Langfuse, 3 rows; 1 without an answer: type is 'SPAN'" in caplog.text


def test_a_log_in_a_csv_or_parquet_file_is_read_alike(tmp_path: Path) -> None:
    expected = read_table(write_lines(tmp_path / "log.jsonl", logs.LITELLM))
    rows = [
        {key: json.dumps(v) if isinstance(v, dict | list) else v for key, v in row.items()}
        for row in logs.LITELLM
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "log.csv", index=False)
    pd.testing.assert_frame_equal(read_table(tmp_path / "log.csv"), expected)
    pd.DataFrame(logs.OPENAI[:2]).to_parquet(tmp_path / "log")
    assert read_table(tmp_path / "log").prompt.tolist() == ["one", "two"]


def test_a_log_of_vllm_is_text(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(logs.VLLM_OLD)
    frame = read_table(tmp_path / "server.log")
    assert frame.prompt.tolist() == ["It's one", "say 'two'"]
    assert frame.arrival_s.tolist() == [0, 3]
    asked, *_, answered = logs.VLLM_OLD.splitlines()[1:5]
    bare = asked.replace("prompt: '", "params: '")
    (tmp_path / "server.log").write_text(f"{bare}\n{answered}\n")
    with pytest.raises(DataError, match=r"no prompt in this log of vLLM; start vLLM with VLLM_LOG"):
        read_table(tmp_path / "server.log")
    (tmp_path / "server.log").write_text("Received request x: params")
    with pytest.raises(DataError, match="no answered request"):
        read_table(tmp_path / "server.log")


def test_a_log_without_prompts_or_lengths_says_what_to_do(tmp_path: Path) -> None:
    bare = [{key: v for key, v in logs.LITELLM[1].items() if key != "messages"}]
    with pytest.raises(DataError, match="store_prompts_in_spend_logs"):
        read_table(write_lines(tmp_path / "log.jsonl", bare))
    streamed = [{"request": logs.OPENAI[0]["request"], "response": {"choices": []}}]
    with pytest.raises(DataError, match="include_usage"):
        read_table(write_lines(tmp_path / "log.jsonl", streamed))


def test_paths_lead_into_plain_tables_and_logs(tmp_path: Path) -> None:
    rows = [{"q": {"text": f"p{n}"}, "n": {"out": n}} for n in range(3)]
    frame = read_table(write_lines(tmp_path / "t", rows), columns=("q.text", "n.out"))
    assert frame["q.text"].tolist() == ["p0", "p1", "p2"]
    assert frame["n.out"].tolist() == [0, 1, 2]
    pd.DataFrame(rows).to_parquet(tmp_path / "t.parquet")
    frame = read_table(tmp_path / "t.parquet", columns=("q.text", "n.no", "no.where"))
    assert frame["q.text"].tolist() == ["p0", "p1", "p2"]
    assert "no.where" not in frame
    path = write_lines(tmp_path / "log.jsonl", logs.OPENAI[:2])
    frame = read_table(path, columns=("prompt", "response.usage.total_tokens"))
    assert frame["response.usage.total_tokens"].tolist() == [19, 29]


def test_a_bad_row_is_an_error_with_its_number_or_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": 1}\n{"a": \n[3]\n{"a": 4}\n')
    with pytest.raises(DataError, match=r"t\.jsonl, row 1: it is no JSON .*--on-bad-rows skip"):
        read_table(path)
    frame = read_table(path, on_bad_rows="skip")
    assert frame.a.tolist() == [1, 4]
    assert list(frame.index) == [0, 3]
    assert "2 of 4 rows left out: 1 because it is no JSON, 1 because it is [3]" in caplog.text


def test_rows_without_a_time_or_an_output_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [*logs.OPENAI[:2], logs.chat("late", 5), logs.chat("none", 0)]
    with caplog.at_level(logging.INFO):
        frame = read_table(write_lines(tmp_path / "log.jsonl", rows))
    assert frame.output_tokens.tolist() == [10, 20, 5]
    assert "arrival_s" not in frame
    assert "2 rows have no time" in caplog.text
    assert "1 rows with an output of 0 tokens left out" in caplog.text


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[]")
    with pytest.raises(DataError, match="no rows"):
        read_table(tmp_path / "t.json")


FRAME = pd.DataFrame(
    {
        "id": ["x"],
        "sent": ["2026-03-01T10:00:00"],
        "question": ["why?"],
        "meta": [{"stats": {"in": 3, "reply_tokens": 4}}],
    }
)


def test_the_columns_are_listed_with_the_options_to_give() -> None:
    options = {"prompt": PROMPT, "output_tokens": LENGTH}
    text = (
        "logs: no column 'prompt', 'output_tokens', 'more'; the columns are: id, sent, question, "
        "meta.stats.in, meta.stats.reply_tokens; give --prompt-column COLUMN --length-column "
        "COLUMN, or so"
    )
    with pytest.raises(DataError, match=re.escape(text)):
        require_columns(FRAME, [*options, "more"], "logs", options, ", or so")


def test_columns_that_are_there_pass() -> None:
    require_columns(FRAME, ["id", "meta"], None)
