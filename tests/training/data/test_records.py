"""Rows are checked at the door: one clear error that names the row, or a record that is right."""

from dataclasses import replace
from functools import partial

import pandas as pd
import pytest

from lengthwise.errors import DataError
from lengthwise.tables.options import RecordOptions
from lengthwise.tables.prompt_text import normalised
from lengthwise.tables.reading import read_table
from tests.lengthwise.tables import logs
from training.data.records import FieldMap, prompt_hash, read_records, to_records


def table(**columns: list[object]) -> pd.DataFrame:
    return pd.DataFrame({"prompt": ["a", "b", "c"], "output_tokens": [3, 5, 7]} | columns)


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_the_same_table_reads_alike_from_every_format(tmp_path, suffix):
    path = tmp_path / f"logs.{suffix}"
    {
        "parquet": table().set_axis([7, 8, 9]).to_parquet,
        "jsonl": partial(table().to_json, orient="records", lines=True),
        "csv": partial(table().to_csv, index=False),
    }[suffix](path)
    records, dropped = to_records(read_table(path), FieldMap())
    assert [(r.prompt, r.output_tokens) for r in records] == [("a", 3), ("b", 5), ("c", 7)]
    assert dropped == 0


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
    records, _ = to_records(frame, fields)
    assert [r.output_tokens for r in records] == [15, 7]
    assert [r.reasoning_tokens for r in records] == [10, 0]


def test_an_answer_is_what_reasoning_leaves_of_the_output():
    frame = pd.DataFrame(
        {"prompt": ["a", "b"], "all": [9, 4], "thought": [7, 0], "id": ["maths/1", "maths/2"]}
    )
    fields = FieldMap(
        output_tokens=("all",), reasoning_tokens="thought", group="id", group_until="/"
    )
    records, _ = to_records(frame, fields)
    assert [record.answer_tokens for record in records] == [2, 4]
    assert {record.group for record in records} == {"maths"}
    with pytest.raises(DataError, match="8 reasoning tokens of 4 output tokens"):
        to_records(frame.assign(thought=8), replace(fields, group=None, group_until=None))


def test_dropped_lengths_are_counted_over_all_length_columns():
    frame = table(output_tokens=[1, 0, 7], second=[0, 0, 1])
    records, dropped = to_records(frame, FieldMap(output_tokens=("output_tokens", "second")))
    assert [(r.prompt, r.sample, r.output_tokens) for r in records] == [
        ("a", 0, 1),
        ("c", 0, 7),
        ("c", 1, 1),
    ]
    assert dropped == 3


def test_a_sample_column_numbers_the_responses():
    records, _ = to_records(table(take=[4, 0, 2]), FieldMap(sample="take"))
    assert [record.sample for record in records] == [4, 0, 2]


def test_reasoning_may_be_all_of_the_output_and_a_given_answer_stays():
    fields = FieldMap(reasoning_tokens="thought")
    records, _ = to_records(table(thought=[3, 0, 2]), fields)
    assert [record.answer_tokens for record in records] == [0, 5, 5]
    both = replace(fields, answer_tokens="said")
    records, _ = to_records(table(thought=[3, 0, 2], said=[9, 9, 9]), both)
    assert [record.answer_tokens for record in records] == [9, 9, 9]


def test_records_of_one_model_are_chosen_after_the_check(tmp_path):
    path = tmp_path / "logs.csv"
    table(llm=["x", "y", "x"], output_tokens=[3, 0, 7]).to_csv(path, index=False)
    records, dropped = read_records(
        path, RecordOptions(model_column="llm", model="x"), "output_tokens"
    )
    assert [record.prompt for record in records] == ["a", "c"]
    assert dropped == 0
    assert len(read_records(path, RecordOptions(model_column="llm"), "output_tokens")[0]) == 2


def test_a_log_names_the_model_of_each_row(tmp_path):
    rows = [logs.chat("one", 10), logs.chat("two", 20)]
    rows[1]["request"]["model"] = "other"
    path = logs.write_lines(tmp_path / "log.jsonl", rows)
    records, _ = read_records(path, RecordOptions(model="other"), "output_tokens")
    assert [record.prompt for record in records] == ["two"]
    path = tmp_path / "logs.csv"
    table(llm=["x", "y", "x"]).to_csv(path, index=False)
    with pytest.raises(DataError, match=r"no column 'model'; .*give --model-column COLUMN"):
        read_records(path, RecordOptions(model="x"), "output_tokens")
