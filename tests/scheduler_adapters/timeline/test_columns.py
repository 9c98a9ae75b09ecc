"""Columns of a timeline under way: rows, runs of tokens, and the first answering token."""

from array import array

import numpy as np
import pytest
from hypothesis import given, strategies as st

from scheduler_adapters.timeline.columns import TimelineRecord
from scheduler_adapters.timeline.timeline import timeline_from_token_times
from scheduler_adapters.workload.requests import make_requests


def recorded(ticks_of: list[list[int]], tick_s: list[float]) -> TimelineRecord:
    """A record in which request i emits a token at each of its ticks, written one by one."""
    record = TimelineRecord()
    record.add_rows(len(ticks_of))
    record.tick_s.extend(tick_s)
    for row, ticks in reversed(list(enumerate(ticks_of))):
        for tick in ticks:
            if tick == ticks[0]:
                record.first_token_s[row] = tick_s[tick]
            record.add_runs(row, (tick, tick))
    return record


@given(st.lists(st.sets(st.integers(0, 9), min_size=1), min_size=1, max_size=5), st.data())
def test_runs_in_any_order_become_the_timeline_of_their_tokens(ticks, data):
    ticks_of = [sorted(each) for each in ticks]
    counts = [len(each) for each in ticks_of]
    thinking = [data.draw(st.integers(0, count - 1)) for count in counts]
    requests = make_requests(
        prompt_tokens=[1] * len(counts), output_tokens=counts, reasoning_tokens=thinking
    )
    tick_s = [0.5 + tick for tick in range(10)]
    record = recorded(ticks_of, tick_s)
    timeline = record.timeline(requests, np.zeros(len(counts), np.bool_))
    token_s = [[tick_s[tick] for tick in each] for each in ticks_of]
    expected = timeline_from_token_times(requests, token_s)
    np.testing.assert_array_equal(timeline.first_answer_s, expected.first_answer_s)
    for row, times in enumerate(token_s):
        assert timeline.token_s(row).tolist() == times
        assert record.token_s(np.repeat(ticks_of[row], 2)) == times


def test_runs_that_touch_become_one_and_others_stay_apart():
    record = recorded([[]], [1.0, 2.0, 3.0, 4.0, 5.0])
    record.add_runs(0, array("q", [3, 4]))
    record.add_runs(0, array("q", [0, 0, 1, 1]))
    requests = make_requests(prompt_tokens=[1], output_tokens=[4])
    timeline = record.timeline(requests, np.array([False]))
    assert timeline.runs.tolist() == [[0, 0, 1], [0, 3, 4]]


def test_requests_that_were_not_handed_over_have_no_times():
    requests = make_requests(prompt_tokens=[1, 1], output_tokens=[1, 1])
    record = recorded([[0]], [1.0])
    record.finished_s[0] = 1.0
    timeline = record.timeline(requests, np.array([False, True]))
    assert timeline.finished_s.tolist() == pytest.approx([1.0, np.nan], nan_ok=True)
    assert timeline.preemptions.tolist() == [0, 0]
    assert timeline.rejected.tolist() == [False, True]
