"""One rule for every row: kept, bad, left out as no request, or censored."""

import re
from typing import Any

import pytest

from lengthwise.errors import DataError
from lengthwise.tables.options import TraceOptions
from lengthwise.tables.reading import read_log
from tests.lengthwise.tables import logs
from tests.lengthwise.tables.logs import write_lines

SKIP = TraceOptions(on_bad_rows="skip")

BAD = [
    ('{"a": ', "it is no JSON"),
    ("[3]", "it is [3], no JSON object"),
    ('{"prompt": "a"}', "it has no output_tokens"),
    ('{"prompt": "", "output_tokens": 3}', "it has no prompt"),
    ('{"prompt": "a", "output_tokens": "five"}', "output_tokens is no whole number of tokens"),
    ('{"prompt": "a", "output_tokens": -5}', "output_tokens is no whole number of tokens"),
    ('{"prompt": "\\ud83d", "output_tokens": 5}', "its prompt holds half a surrogate pair"),
    ('{"prompt": "a", "output_tokens": 3, "reasoning_tokens": 5}', "more reasoning than output"),
    (
        '{"prompt": "a", "output_tokens": 3, "prompt_tokens": 3, "total_tokens": 4}',
        "token counts are not the total",
    ),
]


@pytest.mark.parametrize(("row", "reason"), BAD)
def test_a_bad_row_is_a_numbered_error_or_left_out_and_counted(tmp_path, row, reason):
    path, good = tmp_path / "t.jsonl", '{"prompt": "good", "output_tokens": 7}\n'
    path.write_text(f"{good}{row}\n{good}")
    with pytest.raises(DataError, match=rf"t\.jsonl, row 1: {re.escape(reason)}.*--on-bad-rows"):
        read_log(path)
    found = read_log(path, SKIP)
    assert list(found.frame.index) == [0, 2]
    assert list(found.left_out.values()) == [1]
    assert next(iter(found.left_out)).startswith(reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"response": {"choices": [{"finish_reason": "length"}]}}, "finish_reason is length"),
        ({"request": {"max_tokens": 5}}, "max_tokens reached"),
        ({"response": {"choices": [{"finish_reason": "stop"}] * 2}}, "several answers"),
        ({"cache_hit": True}, "cache_hit is 'True'"),
        ({"status_code": 500}, "status_code is '500'"),
        ({"response": {"usage": {"completion_tokens": 0}}}, "0 tokens"),
    ],
)
def test_rows_that_are_no_length_are_left_out_and_counted(tmp_path, change, reason):
    row: dict[str, Any] = logs.chat("two", 5)
    for key, value in change.items():
        row[key] = {**row[key], **value} if isinstance(value, dict) else value
    found = read_log(write_lines(tmp_path / "log.jsonl", [logs.chat("one", 5), row]))
    assert found.frame.prompt.tolist() == ["one"]
    assert [count for why, count in found.left_out.items() if reason in why] == [1]
    kept = read_log(tmp_path / "log.jsonl", TraceOptions(censored="keep"))
    is_censored = any(why.startswith("censored") for why in found.left_out)
    assert len(kept.frame) == 1 + is_censored
    assert bool(kept.warnings) == is_censored
