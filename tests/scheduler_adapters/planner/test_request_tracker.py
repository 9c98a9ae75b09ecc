"""Views and ranks of the requests of an engine, kept by its events."""

import pytest

from lengthwise.errors import InvalidDecision
from scheduler_adapters.planner.late_scores import LateScore
from scheduler_adapters.planner.ranked_queue import RankedQueue
from scheduler_adapters.planner.request_annotations import REQUEST_KEY, AnnotationCounts
from scheduler_adapters.planner.request_tracker import RequestTracker
from scheduler_adapters.policies.fcfs import ArrivalFallback
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policy import Policy
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView
from tests.scheduler_adapters.planner.waiting import Waiting, fill, in_order, still_clock, track


def test_a_starving_request_outranks_a_shorter_one():
    clock = still_clock()
    tracker = RequestTracker(pars(starve_after_s=120.0), clock)
    queue: RankedQueue[Waiting] = RankedQueue()
    long, short = track(tracker, 900.0), track(tracker, 5.0)
    fill(queue, long, short)
    assert queue.first().lengthwise is short
    clock.now_s += 120.0
    arrival = track(tracker, 1.0)
    fill(queue, arrival)
    tracker.begin_step(queue)
    assert in_order(queue) == [long, short, arrival]
    assert tracker.num_expired == 2


def test_a_switch_to_arrival_and_back_ranks_all_that_wait():
    fallback = ArrivalFallback(pars())
    tracker, queue = RequestTracker(fallback, still_clock()), RankedQueue[Waiting]()
    requests = [track(tracker, score) for score in (9.0, 5.0, 7.0)]
    fill(queue, *requests)
    running = track(tracker, 1.0)
    running.view.phase = Phase.PREFILL
    rank = running.rank
    fallback.is_wanted = True
    requests.append(track(tracker, 6.0))  # before the step that switches
    fill(queue, requests[3])
    tracker.begin_step(queue)
    assert in_order(queue) == requests
    fill(queue, later := track(tracker, 1.0))
    assert in_order(queue) == [*requests, later]
    fallback.is_wanted = False
    tracker.begin_step(queue)
    fill(queue, track(tracker, 8.0), shortest := track(tracker, 2.0))
    assert in_order(queue)[:6] == [*requests, later, shortest]  # those that waited are first
    assert running.rank is rank


def test_an_age_counts_from_the_arrival_at_the_front_end():
    late = track(RequestTracker(pars(starve_after_s=120.0), still_clock()), 900.0, age_s=121.0)
    assert late.view.arrival_s == 1000.0 - 121.0
    assert late.rank.key == ()


def test_a_priority_precedes_the_rank_and_arrival_ends_ties():
    tracker = RequestTracker(pars(starve_after_s=120.0), still_clock(), by_priority=True)
    queue: RankedQueue[Waiting] = RankedQueue()
    lowest, middle, starving, first, twin, negative = (
        track(tracker, score, age_s=age_s, priority=priority)
        for priority, score, age_s in (
            (2**62, 1.0, 0.0),
            (1, 2.0, 0.0),
            (1, 9.0, 130.0),
            (0, 5.0, 1.0),
            (0, 5.0, 2.0),
            (-3, 8.0, 0.0),
        )
    )
    fill(queue, lowest, middle, starving, first, twin, negative)
    assert in_order(queue) == [negative, twin, first, starving, middle, lowest]
    # The policy sees its own rank, and what follows it is still to be put behind the priority.
    assert first.view.previous == first.rank.then._replace(
        key=(5.0,), valid_until_s=first.rank.valid_until_s, then=first.rank.then
    )
    tracker.expire(first)
    assert first.rank.lane == 0
    assert first.rank.key == ((), first.view.arrival_s)


def test_an_unused_priority_changes_nothing():
    tracked = track(RequestTracker(pars(), still_clock()), priority=7)
    assert tracked.priority is None
    assert tracked.rank is tracked.view.previous


@pytest.mark.parametrize("lane", [2**31, -(2**31) - 1, 0.5])
def test_a_lane_that_has_no_place_behind_a_priority_is_refused(lane):
    class Lanes(Policy):
        def rank(self, request: RequestView, load: LoadView) -> Rank:
            return Rank(lane=lane)

    track(RequestTracker(Lanes(), still_clock()), None)
    with pytest.raises(InvalidDecision, match=rf"Lanes.*lane {lane!r}; .*2\*\*31 - 1"):
        track(RequestTracker(Lanes(), still_clock(), by_priority=True), None)


def test_the_outermost_lanes_stay_within_their_priority():
    class Lanes(Policy):
        def rank(self, request: RequestView, load: LoadView) -> Rank:
            return Rank(lane=int(request.score or 0))

    tracker = RequestTracker(Lanes(), still_clock(), by_priority=True)
    lanes = [
        track(tracker, lane, priority=priority).rank.lane
        for priority in (-1, 0, 1)
        for lane in (-(2**31), 0, 2**31 - 1)
    ]
    assert lanes == sorted({*lanes})


def test_no_request_arrives_in_the_future():
    assert track(RequestTracker(pars(), still_clock()), 1.0, age_s=-5.0).view.arrival_s == 1000.0


def test_a_late_score_moves_a_request_that_waits_and_no_other():
    tracker = RequestTracker(pars(), still_clock())
    queue: RankedQueue[Waiting] = RankedQueue()
    middle = track(tracker, 5.0)
    waits, started, early = (track(tracker, key=key) for key in ("waits", "started", "early"))
    fill(queue, middle, waits, early)
    assert in_order(queue) == [middle, waits, early]
    quantiles = ((0.5, 1.0),)
    inbox = tracker.late_scores.inbox
    inbox += [LateScore("early", 1.0, quantiles), LateScore("started", 0.0), LateScore("next", 2.0)]
    tracker.begin_step(queue)
    assert in_order(queue) == [early, middle, waits]
    assert (early.view.score, early.view.quantiles) == (1.0, quantiles)
    assert started.view.score is None
    assert tracker.annotation_counts == AnnotationCounts(late=1)
    after = track(tracker, key="next")
    fill(queue, after)
    assert in_order(queue) == [early, after, middle, waits]
    assert tracker.annotation_counts.late == 1  # `next` was never ranked without its score
    inbox.append(LateScore("waits", -9.0))
    tracker.begin_step(queue)
    assert in_order(queue) == [waits, early, after, middle]


def test_a_score_during_a_run_counts_after_an_eviction():
    tracker = RequestTracker(pars(guard="none"), still_clock())
    queue: RankedQueue[Waiting] = RankedQueue()
    first = track(tracker, 5.0)
    runs = track(tracker, key="runs")
    fill(queue, first)
    runs.view.phase = Phase.PREFILL
    tracker.late_scores.inbox.append(LateScore("runs", 9.0, ((0.5, 1.0),)))
    tracker.begin_step(queue)
    runs.view.phase = Phase.ANSWERING
    tracker.rerank(runs)
    assert runs.view.score is None
    tracker.requeue(runs, generated_tokens=2, preemptions=1)
    fill(queue, runs)
    assert (runs.view.score, runs.view.quantiles) == (9.0, ((0.5, 1.0),))
    assert in_order(queue) == [first, runs]  # the median stood where the first does
    assert (runs.rank.key, tracker.annotation_counts.late) == ((9.0,), 0)
    for _ in range(3):  # the median of four scores, once there are so many
        track(tracker, 9.0)
    assert track(tracker, None).rank.key == (9.0,)
    runs.view.score = 1.0
    tracker.requeue(runs, generated_tokens=3, preemptions=2)
    assert runs.view.score == 1.0  # it is given once


def test_a_late_score_counts_and_the_guard_counts_from_arrival():
    clock = still_clock()
    tracker = RequestTracker(pars(starve_after_s=120.0), clock)
    queue: RankedQueue[Waiting] = RankedQueue()
    late = track(tracker, carried={REQUEST_KEY: "0" * 32})
    fill(queue, late)
    clock.now_s += 50.0
    tracker.late_scores.inbox.append(LateScore("0" * 32, 7.0))
    tracker.begin_step(queue)
    assert (late.rank.key, late.rank.valid_until_s) == ((7.0,), 1120.0)
    assert not queue.pop_expired(1119.9)
    assert track(tracker, None).rank.key == (7.0,)


def test_an_unscored_request_keeps_its_place_when_evicted():
    tracker = RequestTracker(pars(guard="none"), still_clock())
    track(tracker, 5.0)
    unscored = track(tracker, None)
    track(tracker, -50.0)
    track(tracker, -50.0)
    unscored.view.phase = Phase.ANSWERING
    tracker.requeue(unscored, generated_tokens=2, preemptions=1)
    assert unscored.rank.key == (5.0,)


def test_the_mean_step_time_counts_overlap_once():
    clock = still_clock()
    tracker = RequestTracker(pars(), clock)
    for started_s, ended_s in ((1000.0, 1002.0), (1001.0, 1003.0)):
        clock.now_s = ended_s
        tracker.end_step(started_s)
    load = tracker.load
    assert (load.step, load.mean_step_s, load.last_step_end_s) == (2, 1.5, 1003.0)
