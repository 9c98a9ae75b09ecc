"""The unit of times is that of their magnitude, of a name or of an option; else an error."""

from typing import Any

import numpy as np
import pytest

from lengthwise.errors import DataError
from lengthwise.tables.times import Times, time_of


def times_of(values: list[Any]) -> Times:
    known = [time_of(value) for value in values]
    numbers, kinds = zip(*((np.nan, 0) if isinstance(t, str) else t for t in known), strict=True)
    return Times(np.array(numbers, dtype=float), np.array(kinds))


def seconds(values: list[Any], name: str = "t", **units: str | None) -> list[float]:
    found, _ = times_of(values).in_seconds(name, units.get("unit"), units.get("known"))
    return list(np.round(found - np.nanmin(found), 6))


START = 1_772_359_200


@pytest.mark.parametrize("scale", [1, 1000, 10**6, 10**9])
def test_the_magnitude_tells_the_unit_of_instants(scale):
    assert seconds([START * scale, START * scale + scale // 2, (START + 1) * scale])[2] == 1
    assert seconds([str(START * scale), (START + 2) * scale], "arrival_s") == [0, 2]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2026-03-01T10:00:00Z", "2026-03-01T11:00:01+01:00"),
        ("2026-03-01 10:00:00", "2026-03-01 10:00:01 UTC"),
        ("2026-03-01T10:00:00,250", "2026-03-01T10:00:01.2500000"),
        ("2026-03-01T10:00:00Z", START + 1),
        (START, (START + 1) * 1000),
    ],
)
def test_wall_clocks_and_instants_are_of_one_clock(first, second):
    assert seconds([first, second]) == [0, 1]


@pytest.mark.parametrize(
    ("name", "step"),
    [("arrival_s", 2), ("timestamp_ms", 2000), ("sentMs", 2000), ("t_us", 2e6), ("unixNano", 2e9)],
)
def test_a_name_tells_the_unit_of_small_numbers(name, step):
    assert seconds([0, step, 2 * step], name) == [0, 2, 4]


def test_an_option_or_a_known_trace_tells_the_unit():
    assert seconds([0, 500], unit="ms") == [0, 0.5]
    assert seconds([0, 500], known="ms") == [0, 0.5]
    for name in ("timestamp", "arrival_time", "arms"):
        with pytest.raises(DataError, match=rf"{name} is 0 to 500, .*--time-unit s, ms"):
            seconds([0, 500], name)


def test_a_number_that_is_no_instant_among_instants_is_a_bad_row():
    found = seconds([0, *range(START, START + 20), "noon", None])
    assert np.isnan(found[0])
    assert np.isnan(found[-2:]).all()
    for values, name in ((["2026-03-01T10:00:00Z", 5, 6], "t"), ([START, 5, 6], "t_s")):
        with pytest.raises(DataError, match="mixes instants with other numbers"):
            seconds(values, name)
    assert np.isnan(seconds([-1, 0, 2], "t_s")).tolist() == [True, False, False]
    assert seconds([START * 1000 // 2000], "t_us") == [0]


def test_times_of_another_century_are_bad_and_units_agree():
    times = times_of(["2026-03-01T10:00:00Z", "0001-01-01T00:00:00Z", 1772359201])
    seconds, _ = times.in_seconds("time", None, None)
    assert np.isnan(seconds).tolist() == [False, True, False]
    times = times_of([2000])
    with pytest.raises(DataError, match="arrival_s and arrival_ms are of different units"):
        times.in_seconds("arrival_s", None, None, ["arrival_ms"])
