"""RAD: backlog, emptiness and cycles are read off timelines as the theorem means them."""

import numpy as np
import pytest

from scheduler_adapters.papers.rad import (
    ABOVE,
    BELOW,
    CHATS,
    SHORT_CHATS,
    TileSetting,
    backlog,
    idle_spans,
)
from scheduler_adapters.timeline.timeline import timeline_from_token_times
from scheduler_adapters.workload.requests import make_requests


@pytest.mark.slow
def test_the_backlog_of_every_scheduler_grows_above_the_bound():
    setting = TileSetting(CHATS, cycle=1024)
    requests = setting.requests(ABOVE, 2000)
    last_s = requests.arrival_s[-1]
    for system in setting.policies():
        half, end = backlog(setting.run(system, requests), np.array([last_s / 2, last_s]))
        assert end > half > 0, system


def times_empty(setting: TileSetting, *, start: int, count: int) -> int:
    requests = setting.requests(BELOW, count, backlog=start)
    timeline = setting.run("RAD", requests)
    return len(idle_spans(requests.arrival_s, timeline.finished_s)[0])


@pytest.mark.slow
def test_rad_empties_below_the_bound_if_a_cycle_starts_enough_requests():
    enough = TileSetting(SHORT_CHATS, tile=8)
    assert enough.cycle > enough.least_cycle
    assert times_empty(enough, start=200, count=2000) > 10
    too_few = TileSetting(SHORT_CHATS, tile=8, cycle=8)
    assert times_empty(too_few, start=200, count=2000) == 0


def test_the_system_is_empty_between_the_last_departure_and_the_next_arrival():
    arrival_s = np.array([0.0, 0.0, 5.0, 6.0])
    left_s = np.array([3.0, 2.0, 7.0, 6.5])
    at_s, idle_s = idle_spans(arrival_s, left_s)
    assert (at_s.tolist(), idle_s.tolist()) == ([3.0], [2.0])


def test_no_scheduler_can_be_seen_empty_where_tiles_are_large_and_answers_long():
    assert TileSetting(CHATS, cycle=1024).empty_at_most() < 1e-8
    assert TileSetting(SHORT_CHATS, tile=8).empty_at_most() > 0.1


def test_the_backlog_counts_requests_between_arrival_and_end():
    requests = make_requests(prompt_tokens=[1, 1], output_tokens=[1, 1], arrival_s=[0.0, 2.0])
    timeline = timeline_from_token_times(requests, [[1.0], [3.0]])
    at_s = np.array([0.5, 1.5, 2.5, 3.5])
    assert backlog(timeline, at_s).tolist() == [1, 0, 1, 0]
