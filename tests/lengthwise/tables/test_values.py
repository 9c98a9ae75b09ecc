"""Values by path, and the counts and times in them."""

from typing import Any

import pytest

from lengthwise.tables.values import count_of, seconds_of, value_at

ROW = {
    "usage": {"out": 3, "out_more": 4, "in": 9},
    "list": [{"a": 1}],
    "text": '{"a": {"b": 5}}',
    "dotted.key": 6,
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("usage.out", 3),
        ("usage.out*", 7),
        ("usage.no*", None),
        ("list.0.a", 1),
        ("list.1.a", None),
        ("text.a.b", 5),
        ("dotted.key", 6),
        ("usage.out.deeper", None),
        ("nothing", None),
    ],
)
def test_a_path_leads_to_its_value(path: str, value: Any) -> None:
    assert value_at(ROW, path) == value


@pytest.mark.parametrize(
    ("value", "count"),
    [
        *[(3, 3), (3.0, 3), ("3", 3), ("three", None), (3.5, None), (-1, None), (True, None)],
        *[(float("nan"), None), (None, None)],
    ],
)
def test_a_count_is_a_whole_number(value: Any, count: int | None) -> None:
    assert count_of(value) == count


def test_times_are_seconds_whatever_they_are_written_as() -> None:
    instant = 1772359200.0
    assert seconds_of(instant) == seconds_of(instant * 1000) == seconds_of(str(instant)) == instant
    assert seconds_of("2026-03-01T10:00:00Z") == instant
    assert seconds_of("2026-03-01 10:00:00") == instant
    assert seconds_of("2026-03-01T11:00:00+01:00") == instant
    assert seconds_of("noon") is None
    assert seconds_of(None) is None
