"""Prompts of any table: columns by option, one model, the bundle's label where none is named."""

from __future__ import annotations

import logging
from pathlib import Path

import pandas as pd
import pytest

from lengthwise.errors import DataError
from tests.lengthwise.tables import logs
from training.data.logged_prompts import TableOptions, read_prompts


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "logs.csv"
    pd.DataFrame(
        {
            "text": ["a", "b", "a"],
            "first": [3, 0, 5],
            "second": [4, 6, 7],
            "task": ["x", "y", "x"],
            "llm": ["m", "m", "n"],
        }
    ).to_csv(path, index=False)
    return str(path)


def test_length_columns_are_samples_and_the_label_is_the_default(
    table: str, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = TableOptions(data=table, prompt_column="text", length_column=("second", "first"))
    with caplog.at_level(logging.INFO, logger="training"):
        prompts = read_prompts(chosen, "reasoning_tokens")
    assert [(item.prompt, item.lengths) for item in prompts] == [("a", (4, 7, 3, 5)), ("b", (6,))]
    assert "1 rows with a length of 0 dropped" in caplog.text
    by_label = read_prompts(TableOptions(data=table, prompt_column="text"), "second")
    assert [item.observed for item in by_label] == [4, 6]


def test_a_model_must_be_chosen_where_the_table_holds_several(table: str) -> None:
    columns = {"prompt_column": "text", "length_column": ("second",), "group_column": "task"}
    with pytest.raises(DataError, match="the rows are of m, n; choose one with --model"):
        read_prompts(TableOptions(data=table, model_column="llm", **columns), "")  # type: ignore[arg-type]
    one = TableOptions(data=table, model_column="llm", model="n", **columns)  # type: ignore[arg-type]
    assert [(p.model, p.observed, p.group) for p in read_prompts(one, "")] == [("n", 7, "x")]
    with pytest.raises(DataError, match="not 'o'"):
        read_prompts(TableOptions(data=table, model_column="llm", model="o", **columns), "")  # type: ignore[arg-type]


def test_a_log_is_read_like_a_table(tmp_path: Path) -> None:
    path = str(logs.write_lines(tmp_path / "log.jsonl", logs.LITELLM))
    prompts = read_prompts(TableOptions(data=path, model="m"), "output_tokens")
    assert [(item.prompt, item.observed) for item in prompts] == [("one", 12), ("two", 30)]
    (reasoned,) = read_prompts(TableOptions(data=path, on_bad_rows="skip"), "reasoning_tokens")
    assert (reasoned.prompt, reasoned.observed) == ("two", 20)
