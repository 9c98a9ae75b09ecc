"""Each format is recognised, and its paths lead to our columns."""

from pathlib import Path
from typing import Any

import pytest

from lengthwise.errors import DataError
from lengthwise.tables.columns import Log
from lengthwise.tables.gateways import LAYOUTS
from lengthwise.tables.gateways.formats import FORMATS, TABLE
from lengthwise.tables.options import TraceOptions
from lengthwise.tables.reading import read_log
from tests.lengthwise.tables import logs

STRANGERS = logs.rows_of("gateways/strangers.jsonl")
"""Logs of many gateways and tools in short, each with its requests, counts and warnings."""


def read(paths: list[Path], **options: Any) -> Log:
    given = {key: tuple(x) if isinstance(x, list) else x for key, x in options.items()}
    needs, wants = ("output_tokens", "arrival_s"), ("prompt", "prompt_tokens")
    return read_log(paths, TraceOptions(**given), needs=needs, wants=wants, is_lenient=True)


@pytest.mark.parametrize("case", STRANGERS, ids=lambda case: case["name"])
def test_logs_of_strangers_are_read_right_or_refused(tmp_path, case):
    paths = logs.write_files(tmp_path, case["rows"])
    if case["error"]:
        with pytest.raises(DataError, match=case["error"]):
            read(paths, **case["options"])
        return
    log = read(paths, **case["options"])
    columns = ["prompt", "prompt_tokens", "output_tokens", "arrival_s"]
    frame = log.frame.reindex(columns=columns).astype(object)
    assert frame.where(frame.notna(), None).values.tolist() == case["right"]
    assert log.left_out == case["left_out"]
    assert bool(log.warnings) == bool(case["warning"])
    assert (case["warning"] or "") in "; ".join(log.warnings)


def test_layouts_have_the_fields_of_a_table_only():
    fields = {*TABLE.paths, *("like", "marks", "answered", "no_load", "parts_beside", "time_unit")}
    fields |= {"is_apart", "prepare", "without_prompt", "without_length"}
    layouts = [layout for name, layout in LAYOUTS.items() if name != "names"]
    assert not {key for layout in layouts for key in layout} - fields
    assert all(known.marks for known in FORMATS)


def test_answers_without_counts_are_counted_by_a_tokenizer(tmp_path, tokenizer):
    turns = [
        {"from": "gpt", "value": "before"},
        {"from": "human", "value": "now ?"},
        {"from": "gpt", "value": "this is it"},
    ]
    paths = logs.write_files(tmp_path, [{"id": "a", "conversations": turns}])
    log = read(paths, tokenizer=str(tokenizer))
    got = log.frame[["prompt", "prompt_tokens", "output_tokens"]].values.tolist()
    assert got == [["now ?", 2, 3]]
    assert str(tokenizer) in log.sources["output_tokens"]
