"""Rows are checked at the door: one clear error that names the row, or a record that is right."""

import json
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from lengthwise.conversation import described
from lengthwise.errors import DataError
from lengthwise.tables.options import RecordOptions
from lengthwise.tables.prompt_text import normalised
from tests.lengthwise.tables import logs
from tests.training.prompts import PromptResponse, of_responses
from training.data.records import (
    FieldMap,
    checked,
    num_empty,
    num_responses,
    prompt_hash,
    read_records,
    stored,
)


def to_records(frame: pd.DataFrame, fields: FieldMap, path: str | None = None) -> list[Any]:
    return list(checked(enumerate(frame.to_dict("records")), fields, path=path))


def table(**columns: list[object]) -> pd.DataFrame:
    return pd.DataFrame({"prompt": ["a", "b", "c"], "output_tokens": [3, 5, 7]} | columns)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"output_tokens": [3, -5, 7]}, "row 1: output_tokens is -5"),
        ({"output_tokens": [3.0, float("nan"), 7.0]}, "row 1: output_tokens is nan"),
        ({"output_tokens": [3.0, 5.0, float("inf")]}, "row 2: output_tokens is inf"),
        ({"output_tokens": ["3", "five", "7"]}, "row 1: output_tokens is 'five'"),
        ({"output_tokens": [3, 5, None]}, "row 2: output_tokens is"),
        ({"output_tokens": [3.5, 5.0, 7.0]}, "row 0: output_tokens is 3.5"),
        ({"prompt": ["a", " ", "c"]}, "row 1: prompt is ' '"),
        ({"prompt": ["a", None, "c"]}, "row 1: prompt is"),
    ],
)
def test_a_bad_value_is_named_with_its_row(columns, message):
    with pytest.raises(DataError, match=r"logs\.parquet, ") as caught:
        to_records(table(**columns), FieldMap(), path="logs.parquet")
    assert message in str(caught.value)


def test_a_missing_column_is_named_beside_the_columns_there_are():
    with pytest.raises(
        DataError, match="no column 'tokens'; the columns are: prompt, output_tokens"
    ):
        to_records(table(), FieldMap(output_tokens=("tokens",)))


def test_case_and_spacing_do_not_make_another_prompt():
    assert normalised("  Name\n three   BEES ") == "name three bees"
    assert prompt_hash("Name  three bees") == prompt_hash("name three\nBees")
    assert prompt_hash("name three bees", "x") != prompt_hash("name three bees", "y")


def test_reasoning_and_answer_add_up_where_there_is_no_total():
    frame = pd.DataFrame({"prompt": ["a", "b"], "thinking": [10, 0], "answer": [5, 7]})
    fields = FieldMap(output_tokens=(), reasoning_tokens="thinking", answer_tokens="answer")
    records = to_records(frame, fields)
    assert [r["output_tokens"] for r in records] == [[15], [7]]
    assert [r["reasoning_tokens"] for r in records] == [10, 0]


def test_an_answer_is_what_reasoning_leaves_of_the_output():
    frame = pd.DataFrame(
        {"prompt": ["a", "b"], "all": [9, 4], "thought": [7, 0], "id": ["maths/1", "maths/2"]}
    )
    fields = FieldMap(
        output_tokens=("all",), reasoning_tokens="thought", group="id", group_until="/"
    )
    records = to_records(frame, fields)
    assert [record["answer_tokens"] for record in records] == [2, 4]
    assert {record["group"] for record in records} == {"maths"}
    with pytest.raises(DataError, match="8 reasoning tokens of 4 output tokens"):
        to_records(frame.assign(thought=8), replace(fields, group=None, group_until=None))


def test_dropped_lengths_are_counted_over_all_length_columns():
    frame = table(output_tokens=[1, 0, 7], second=[0, 0, 1])
    fields = FieldMap(output_tokens=("output_tokens", "second"))
    records, _ = stored(lambda _: iter(to_records(frame, fields)), "two columns")
    assert records["output_tokens"][:] == [[1, 0], [0, 0], [7, 1]]
    assert (num_responses(records), num_empty(records)) == (3, 3)


def test_reasoning_may_be_all_of_the_output_and_an_answer_stays():
    fields = FieldMap(reasoning_tokens="thought")
    records = to_records(table(thought=[3, 0, 2], take=[4, 0, 2]), replace(fields, sample="take"))
    assert [(record["answer_tokens"], record["sample"]) for record in records] == [
        (0, 4),
        (5, 0),
        (5, 2),
    ]
    both = replace(fields, answer_tokens="said")
    records = to_records(table(thought=[3, 0, 2], said=[9, 9, 9]), both)
    assert [record["answer_tokens"] for record in records] == [9, 9, 9]


def test_records_of_one_model_are_chosen_after_the_check(tmp_path):
    rows = [logs.chat("one", 10), logs.chat("two", 20)]
    rows[1]["request"]["model"] = "other"
    path = logs.write_lines(tmp_path / "log.jsonl", rows)
    records, _ = read_records(path, RecordOptions(model="other"))
    assert records["prompt"][:] == ["two"]
    path = tmp_path / "logs.csv"
    table(llm=["x", "y", "x"], output_tokens=[3, 0, 7]).to_csv(path, index=False)
    records, dropped = read_records(path, RecordOptions(model_column="llm", model="x"))
    assert (records["prompt"][:], dropped) == (["a", "c"], 0)
    assert len(read_records(path, RecordOptions(model_column="llm"))[0]) == 2
    with pytest.raises(DataError, match=r"no column 'model'; .*give --model-column COLUMN"):
        read_records(path, RecordOptions(model="x"))


def test_rows_are_read_once_and_anew_after_any_change(tmp_path, caplog):
    caplog.set_level("INFO")
    path = tmp_path / "logs.csv"
    table(output_tokens=[3, 0, 7]).to_csv(path, index=False)
    first, again = (read_records(path, RecordOptions()) for _ in range(2))
    assert first[1] == again[1] == 1
    assert first[0].cache_files == again[0].cache_files
    told = "2 of 3 rows; left out: 1 an output of 0 tokens"
    assert len([line for line in caplog.messages if told in line]) == 2
    kept = read_records(path, RecordOptions(censored="keep"))[0]
    assert kept.cache_files != first[0].cache_files
    table().to_csv(path, index=False)
    assert len(read_records(path, RecordOptions())[0]) == 3


def test_responses_in_memory_become_the_same_rows():
    made = of_responses([PromptResponse(prompt="a", output_tokens=3, reasoning_tokens=1)])
    (row,) = made
    assert (row["prompt"], row["output_tokens"], row["answer_tokens"]) == ("a", [3], 2)
    assert row["key"].hex() == prompt_hash("A")


def test_rows_of_bodies_are_described(tmp_path):
    body = {"messages": [{"role": "user", "content": "Sort it."}], "tools": [{"name": "ls"}]}
    rows = [{"prompt": json.dumps(body), "output_tokens": 3}]
    rows += [{"prompt": described("Sort it."), "output_tokens": 4}]
    path = tmp_path / "bodies.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    records, _ = read_records(str(path), RecordOptions(), description=1)
    assert records["prompt"][:] == [described(body), described("Sort it.")]
    assert read_records(str(path), RecordOptions())[0]["prompt"][0] == "Sort it."
