"""Values by path, and the counts and times in them."""

import pytest

from lengthwise.tables.values import clock_of, count_of, flat, number_of, plain

ROW = {"usage": {"out": 3, "out_more": 4, "in": 9}, "list": [{"a": 1}], "dotted.key": 6}
ROW["text"] = '{"a": {"b": 5}}'


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("usage.out", 3),
        ("Usage.Out", 3),
        ("usage_outMore", 4),
        ("list.0.a", 1),
        ("list.1.a", None),
        ("text.a.b", 5),
        ("dotted.key", 6),
        ("usage.out.deeper", None),
        ("nothing", None),
    ],
)
def test_a_path_leads_to_its_value(path, value):
    assert flat(ROW).get(plain(path)) == value


@pytest.mark.parametrize(
    ("value", "count"),
    [
        *((3, 3), (3.0, 3), ("3", 3), ("3.0", 3), ("three", None), (3.5, None), (-1, None)),
        *((True, None), (float("nan"), None), (None, None), (2**31, 2**31), (2**31 + 1, None)),
    ],
)
def test_a_count_is_a_whole_number(value, count):
    assert count_of(value) == count


def test_instants_of_wall_clocks_are_seconds_since_1970():
    instant = 1772359200.0
    assert clock_of("2026-03-01T10:00:00Z") == (instant, True)
    for zone in ("UTC", "+0000", "+00:00", "+0000 UTC"):
        assert clock_of(f"2026-03-01 10:00:00 {zone}") == (instant, True)
    assert clock_of("2026-03-01T11:00:00+01:00") == (instant, True)
    assert clock_of("2026-03-01T10:00:00") == (instant, False)
    assert clock_of("noon") is clock_of(None) is clock_of(instant) is None


@pytest.mark.parametrize(
    ("value", "number"), [("1.5", 1.5), (2, 2.0), (True, None), ("x", None), (float("inf"), None)]
)
def test_a_number_may_be_a_text(value, number):
    assert number_of(value) == number
