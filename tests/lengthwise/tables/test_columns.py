"""Columns of a log: its times in one unit, and its numbers in short."""

import pytest

from lengthwise.errors import DataError
from lengthwise.tables.columns import quantiles
from lengthwise.tables.options import TraceOptions
from lengthwise.tables.reading import read_log
from tests.lengthwise.tables.logs import write_lines

REPLAY = ("output_tokens", "prompt_tokens", "arrival_s")


def test_times_of_unknown_unit_are_refused_only_where_needed(tmp_path):
    rows = [{"timestamp": n, "prompt": "a", "prompt_tokens": 3, "output_tokens": 4} for n in (0, 9)]
    path = write_lines(tmp_path / "t.jsonl", rows)
    assert "arrival_s" not in read_log(path).frame
    with pytest.raises(DataError, match=r"t\.jsonl: timestamp is 0 to 9, .*--time-unit"):
        read_log(path, needs=REPLAY)
    in_ms = read_log(path, TraceOptions(time_unit="ms"), needs=REPLAY)
    assert in_ms.frame.arrival_s.tolist() == [0, 0.009]
    assert "--time-unit" in read_log(path, needs=REPLAY, is_lenient=True).warnings[0]


def test_quantiles_are_of_known_values():
    assert quantiles([1, 2, float("nan"), 3]) == "p5 1.1, p50 2, p95 2.9, most 3"
