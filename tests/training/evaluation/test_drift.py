"""Drift: windows of a log, their coverage, and when a fall is more than chance."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import DataError
from training.evaluation.drift import MAX_WINDOWS, Window, judge, measure_window, window_bounds

RHO = 0.81
"""Correlation of score and log length that gives a tau_b of .6, as a good ranker has."""


CALIBRATION = {
    "scores": [0.0, 1.0],
    "mean": [500.0, 500.0],
    "quantiles": {"0.25": [250.0, 250.0], "0.9": [900.0, 900.0]},
}


@given(rows=st.integers(1, 5000), window=st.integers(20, 2000))
def test_windows_end_with_the_log_and_cover_its_newest_rows(rows: int, window: int) -> None:
    bounds = window_bounds(rows, window)
    assert 1 <= len(bounds) <= MAX_WINDOWS
    assert bounds[-1][1] == rows
    assert all(0 <= first < end and end - first == min(rows, window) for first, end in bounds)
    steps = {later[1] - earlier[1] for earlier, later in pairwise(bounds)}
    assert steps <= {window // 4}


def test_coverage_is_the_share_of_lengths_at_or_below_the_quantile() -> None:
    scores, lengths = np.linspace(-1, 2, 1000), np.arange(1.0, 1001.0)
    window = measure_window(scores, lengths, CALIBRATION, first_row=7)
    assert window.coverage == {"0.25": 0.25, "0.9": 0.9}
    assert (window.first_row, window.end_row, window.tau_b) == (7, 1007, 1.0)


def test_an_undefined_tau_b_is_no_verdict() -> None:
    window = measure_window(np.arange(30.0), np.full(30, 7.0), None, first_row=0)
    assert math.isnan(window.tau_b)
    with pytest.raises(DataError, match="all their lengths or all their scores are equal"):
        judge(window, 0.5)


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_the_help_says() -> None:
    rng = np.random.default_rng(0)

    def rows(count: int, random_part: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        scores, noise = rng.normal(size=(2, count))
        logs = np.where(rng.random(count) < random_part, rng.normal(size=count), RHO * scores)
        return scores, np.exp(4 + logs + noise * math.sqrt(1 - RHO**2))

    def alarms(checks: int, num_rows: int, random_part: float) -> tuple[float, float]:
        """Shares of checks that are below the gate of twice as many test rows, and surely so."""
        below, certain = 0, 0
        for _ in range(checks):
            gate = measure_window(*rows(2 * num_rows), None, first_row=0).tau_b_ci[0]
            window = measure_window(*rows(num_rows, random_part), None, first_row=0)
            verdict = judge(window, gate)
            is_below = verdict["verdict"] == "below_gate"
            below += is_below
            certain += is_below and verdict["certain"]
        return below / checks, certain / checks

    # Without drift the shares depend on the ratio of the two numbers of rows only.
    below, certain = alarms(60, 250, 0.0)
    assert 0.02 <= below <= 0.26  # One of eight; three standard deviations of 60 checks beside it.
    assert certain <= 0.05
    below, certain = alarms(12, 1000, 0.1)
    assert below >= 0.9
    assert certain >= 0.5


@pytest.mark.parametrize(
    ("interval", "gate", "below", "certain", "reason"),
    [
        ((0.4, 0.6), 0.39, False, True, "holds its gate"),
        ((0.4, 0.6), 0.4, False, True, "holds its gate"),
        ((0.4, 0.6), 0.41, False, False, "holds its gate"),
        ((0.4, 0.6), 0.5, False, False, "holds its gate"),
        ((0.4, 0.6), 0.51, True, False, "this may be chance"),
        ((0.4, 0.6), 0.6, True, False, "this may be chance"),
        ((0.4, 0.6), 0.61, True, True, "train again on these logs"),
    ],
)
def test_a_verdict_is_certain_where_the_whole_interval_is_on_its_side(
    interval: tuple[float, float], gate: float, below: bool, certain: bool, reason: str
) -> None:
    window = Window(first_row=0, end_row=100, tau_b=0.5, tau_b_ci=interval, coverage={})
    verdict = judge(window, gate)
    assert (verdict["verdict"], verdict["certain"]) == ("below_gate" if below else "holds", certain)
    assert reason in verdict["reason"]
    assert "tau_b 0.500 (95% 0.400 to 0.600)" in verdict["reason"]
