"""The queue in rank order, against a list that is sorted anew after each operation."""

import gc
import weakref
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

import pytest
from hypothesis import given, strategies as st

from lengthwise.errors import InvalidDecision
from scheduler_adapters.planner.late_scores import LateScore
from scheduler_adapters.planner.ranking import (
    RankedQueue,
    RankedRequest,
    Ranker,
    ends_thinking,
)
from scheduler_adapters.planner.request_annotations import REQUEST_KEY, AnnotationCounts
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policy import Policy, load_policy
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView

ranks = st.builds(
    Rank,
    key=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    lane=st.integers(0, 1),
    valid_until_s=st.sampled_from([1.0, 2.0, 3.0, inf]),
)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), ranks),
        st.tuples(st.just("pop"), st.none()),
        st.tuples(st.just("remove"), st.integers(0, 20)),
        st.tuples(st.just("expire"), st.sampled_from([0.5, 1.0, 2.5, 9.0])),
    ),
    max_size=40,
)


@dataclass(eq=False)
class Waiting:
    """A waiting request of an engine that keeps nothing else of it."""

    lengthwise: RankedRequest


def waiting(number: int, rank: Rank) -> Waiting:
    view = RequestView(request_id=str(number), number=number, arrival_s=0.0, prompt_tokens=1)
    return Waiting(RankedRequest(view, rank))


def number_of(item: Waiting) -> int:
    return item.lengthwise.view.number


@given(operations=operations)
def test_the_queue_is_always_what_sorting_would_give(operations):
    queue: RankedQueue[Waiting] = RankedQueue()
    model: dict[int, Rank] = {}
    for number, (kind, value) in enumerate(operations):
        if kind == "add":
            queue.add(waiting(number, value))
            model[number] = value
        elif kind == "pop" and model:
            first = min(model, key=lambda n: (model[n].lane, model[n].key, n))
            assert number_of(queue.first()) == number_of(queue.pop_first()) == first
            del model[first]
        elif kind == "remove":
            found = queue.remove(value)
            assert (found is not None) == (model.pop(value, None) is not None)
            assert found is None or number_of(found) == value
        elif kind == "expire":
            due = {n for n, rank in model.items() if rank.valid_until_s <= value}
            assert {number_of(item) for item in queue.pop_expired(value)} == due
            for n in due:
                del model[n]
        by_rank = sorted(model, key=lambda n: (model[n].lane, model[n].key, n))
        assert [number_of(item) for item in queue] == by_rank
        assert len(queue) == len(model)
        assert all(n in queue for n in model)


def test_an_empty_queue_says_so():
    queue: RankedQueue[Waiting] = RankedQueue()
    with pytest.raises(IndexError):
        queue.first()
    with pytest.raises(IndexError):
        queue.pop_first()


def test_timers_do_not_keep_a_removed_item_alive_and_do_not_pile_up():
    queue: RankedQueue[Waiting] = RankedQueue()
    for number in range(10_000):
        last = waiting(number, Rank(valid_until_s=1e9 + number))
        gone = weakref.ref(last)
        queue.add(last)
        queue.remove(number)
    del last
    gc.collect()
    assert gone() is None
    assert len(queue._timers._heap) <= 65


class Clock:
    """Time that stands still until it is set, in seconds."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def track(
    ranker: Ranker, score: float | None = None, *, age_s: float = 0.0, **more: Any
) -> RankedRequest:
    carried = None if score is None else {"lengthwise_score": score}
    return ranker.track("r", age_s=age_s, prompt_tokens=3, **{"carried": carried} | more)


def fill(queue: RankedQueue[Waiting], *requests: RankedRequest) -> None:
    for tracked in requests:
        queue.add(Waiting(tracked))


def in_order(queue: RankedQueue[Waiting]) -> list[RankedRequest]:
    return [item.lengthwise for item in queue]


def test_a_starving_request_outranks_a_shorter_one():
    clock = Clock()
    ranker = Ranker(pars(starve_after_s=120.0), clock)
    queue: RankedQueue[Waiting] = RankedQueue()
    long, short = track(ranker, 900.0), track(ranker, 5.0)
    fill(queue, long, short)
    assert queue.first().lengthwise is short
    clock.now_s += 120.0
    arrival = track(ranker, 1.0)
    fill(queue, arrival)
    ranker.begin_step(queue)
    assert in_order(queue) == [long, short, arrival]
    assert ranker.num_expired == 2


def test_the_age_of_a_request_counts_from_its_arrival_at_the_front_end():
    late = track(Ranker(pars(starve_after_s=120.0), Clock()), 900.0, age_s=121.0)
    assert late.view.arrival_s == 1000.0 - 121.0
    assert late.rank.key == ()


def test_the_engines_priority_goes_before_lane_and_key_and_arrival_ends_ties():
    ranker = Ranker(pars(starve_after_s=120.0), Clock(), by_priority=True)
    queue: RankedQueue[Waiting] = RankedQueue()
    lowest, middle, starving, first, twin, negative = (
        track(ranker, score, age_s=age_s, priority=priority)
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
    ranker.expire(first)
    assert first.rank.lane == 0
    assert first.rank.key == ((), first.view.arrival_s)


def test_where_the_engine_does_not_sort_by_priority_it_changes_nothing():
    tracked = track(Ranker(pars(), Clock()), priority=7)
    assert tracked.priority is None
    assert tracked.rank is tracked.view.previous


@pytest.mark.parametrize("lane", [2**31, -(2**31) - 1, 0.5])
def test_a_lane_that_has_no_place_behind_a_priority_is_refused(lane):
    class Lanes(Policy):
        def rank(self, request: RequestView, load: LoadView) -> Rank:
            return Rank(lane=lane)

    track(Ranker(Lanes(), Clock()), None)
    with pytest.raises(InvalidDecision, match=rf"Lanes.*lane {lane!r}; .*2\*\*31 - 1"):
        track(Ranker(Lanes(), Clock(), by_priority=True), None)


def test_the_outermost_lanes_stay_within_their_priority():
    class Lanes(Policy):
        def rank(self, request: RequestView, load: LoadView) -> Rank:
            return Rank(lane=int(request.score or 0))

    ranker = Ranker(Lanes(), Clock(), by_priority=True)
    lanes = [
        track(ranker, lane, priority=priority).rank.lane
        for priority in (-1, 0, 1)
        for lane in (-(2**31), 0, 2**31 - 1)
    ]
    assert lanes == sorted({*lanes})


def test_clocks_that_disagree_make_no_request_arrive_in_the_future():
    assert track(Ranker(pars(), Clock()), 1.0, age_s=-5.0).view.arrival_s == 1000.0


def test_a_late_score_moves_a_request_that_waits_and_no_other():
    ranker = Ranker(pars(), Clock())
    queue: RankedQueue[Waiting] = RankedQueue()
    middle = track(ranker, 5.0)
    waits, started, early = (track(ranker, key=key) for key in ("waits", "started", "early"))
    fill(queue, middle, waits, early)
    assert in_order(queue) == [middle, waits, early]
    quantiles = ((0.5, 1.0),)
    inbox = ranker.late_scores.inbox
    inbox += [LateScore("early", 1.0, quantiles), LateScore("started", 0.0), LateScore("next", 2.0)]
    ranker.begin_step(queue)
    assert in_order(queue) == [early, middle, waits]
    assert (early.view.score, early.view.quantiles) == (1.0, quantiles)
    assert started.view.score is None
    assert ranker.annotation_counts == AnnotationCounts(scored=1, unscored=3, late=1)
    after = track(ranker, key="next")
    fill(queue, after)
    assert in_order(queue) == [early, after, middle, waits]
    assert ranker.annotation_counts.late == 2
    inbox.append(LateScore("waits", -9.0))
    ranker.begin_step(queue)
    assert in_order(queue) == [waits, early, after, middle]


class Scoring:
    """A ranker beside the engine: it scores nothing until the engine waits for it."""

    hold_s = 5.0

    def __init__(
        self, scores: dict[str, float | None], most: int = 9, score_all: bool = False
    ) -> None:
        self.scores, self.most, self.score_all = scores, most, score_all
        self.submitted: list[tuple[str, Any]] = []
        self.waits_s: list[float] = []

    def submit(self, key, prompt, client, take):
        self.submitted.append((key, take))
        return len(self.submitted) <= self.most

    def wait(self, seconds):
        self.waits_s.append(seconds)
        for key, take in self.submitted:
            if key in self.scores:
                score = self.scores[key]
                take(LateScore(key, score, reason="" if score else "undecodable"))
        self.submitted.clear()


def burst_of(scoring: Scoring, count: int, clock: Clock) -> tuple[Ranker, RankedQueue[Waiting]]:
    ranker = Ranker(pars(), clock, scoring=scoring)
    queue: RankedQueue[Waiting] = RankedQueue()
    fill(queue, *(track(ranker, None) for _ in range(count)))
    return ranker, queue


def numbers(queue: RankedQueue[Waiting]) -> list[int]:
    return [number_of(item) for item in queue]


def test_an_idle_engine_waits_for_the_scores_of_a_burst_and_starts_the_best_of_them():
    scoring = Scoring({"0": 3.0, "1": 1.0, "2": None, "3": 2.0})
    ranker, queue = burst_of(scoring, 4, Clock())
    assert (len(queue), len(queue.held)) == (0, 4)
    assert ranker.load.num_waiting == 4
    ranker.begin_step(queue, num_free=2, is_idle=True)
    assert numbers(queue) == [1, 2, 3, 0]  # 2 at the median of the two scores before it
    assert (scoring.waits_s, queue.held) == ([5.0], {})
    assert ranker.annotation_counts == AnnotationCounts(unscored=4, late=3, undecodable=1)


def test_while_others_run_a_request_is_held_until_its_score_or_a_short_deadline():
    clock, scoring = Clock(), Scoring({})
    ranker, queue = burst_of(scoring, 3, clock)
    ranker.begin_step(queue, num_free=2, is_idle=False)
    assert (len(queue), len(queue.held), ranker.load.num_waiting) == (0, 3, 3)
    ranker.late_scores.inbox.append(LateScore("1", 4.0))
    ranker.begin_step(queue, num_free=2, is_idle=False)
    assert (numbers(queue), [*queue.held]) == ([1], [0, 2])
    assert queue.remove(2) is not None  # its client has left
    clock.now_s += 5.0
    ranker.begin_step(queue, num_free=1, is_idle=False)
    assert (numbers(queue), queue.held, scoring.waits_s) == ([0, 1], {}, [])  # 0 at the median, 4
    ranker.late_scores.inbox.append(LateScore("0", 9.0))
    ranker.begin_step(queue)
    assert numbers(queue) == [1, 0]


def test_requests_that_start_at_once_are_neither_held_nor_scored():
    scoring = Scoring({"1": 3.0})
    ranker, queue = burst_of(scoring, 2, Clock())
    ranker.begin_step(queue, num_free=2, num_tokens=100, is_idle=True)
    assert (numbers(queue), queue.held, scoring.submitted) == ([0, 1], {}, [])
    assert not ranker.late_scores._waiting  # nothing is kept of them
    queue.remove(0)  # it has started, while the other lacked memory
    ranker.begin_step(queue, num_free=1)
    assert [key for key, _ in scoring.submitted] == ["1"]
    scoring.wait(0)
    ranker.begin_step(queue, num_free=1)
    assert ranker.annotation_counts == AnnotationCounts(unscored=2, late=1, at_once=1)


@pytest.mark.parametrize("scarce", [{"num_free": 1}, {"num_free": 2, "num_tokens": 1}])
def test_requests_are_scored_where_seats_or_tokens_do_not_suffice_for_all(scarce):
    scoring = Scoring({})
    ranker, queue = burst_of(scoring, 2, Clock())
    ranker.begin_step(queue, **scarce)
    assert [key for key, _ in scoring.submitted] == ["0", "1"]
    assert [*queue.held] == [0, 1]


def test_a_request_that_started_without_a_score_has_one_after_an_eviction():
    scoring = Scoring({})
    ranker, queue = burst_of(scoring, 1, Clock())
    ranker.begin_step(queue, num_free=1)
    (item,) = queue
    queue.remove(0)
    ranker.begin_step(queue, num_free=1)
    ranker.requeue(item.lengthwise, generated_tokens=1, preemptions=1)
    assert [key for key, _ in scoring.submitted] == ["0"]


@pytest.mark.parametrize("policy", ["pars", "srpt"])
def test_all_are_scored_at_arrival_if_so_set_or_if_running_requests_are_ranked(policy):
    scoring = Scoring({}, score_all=policy == "pars")
    track(Ranker(load_policy(policy), Clock(), scoring=scoring), None)
    assert [key for key, _ in scoring.submitted] == ["0"]


def test_requests_beyond_the_rankers_queue_are_counted_and_held_no_longer():
    ranker, queue = burst_of(Scoring({}, most=1), 2, Clock())
    ranker.begin_step(queue)
    assert (numbers(queue), [*queue.held]) == ([1], [0])
    assert ranker.annotation_counts == AnnotationCounts(unscored=2, full=1)


def test_a_request_that_is_scored_elsewhere_is_not_scored_in_the_engine():
    scoring = Scoring({})
    ranker = Ranker(pars(), Clock(), scoring=scoring)
    for carried in ({"lengthwise_score": 1.0}, {REQUEST_KEY: "0" * 32}):
        tracked = track(ranker, carried=carried)
        assert (scoring.submitted, tracked.held_until_s) == ([], -inf)


def test_a_score_that_comes_while_its_request_runs_counts_once_that_waits_again():
    ranker = Ranker(pars(), Clock())
    queue: RankedQueue[Waiting] = RankedQueue()
    first = track(ranker, 5.0)
    runs = track(ranker, key="runs")
    fill(queue, first)
    runs.view.phase = Phase.PREFILL
    ranker.late_scores.inbox.append(LateScore("runs", 9.0, ((0.5, 1.0),)))
    ranker.begin_step(queue)
    runs.view.phase = Phase.ANSWERING
    ranker.rerank(runs)
    assert (runs.view.score, ranker.annotation_counts.late) == (None, 0)
    ranker.requeue(runs, generated_tokens=2, preemptions=1)
    fill(queue, runs)
    assert (runs.view.score, runs.view.quantiles) == (9.0, ((0.5, 1.0),))
    assert in_order(queue) == [first, runs]  # the median stood where the first does
    assert (runs.rank.key, ranker.annotation_counts.late) == ((9.0,), 1)
    for _ in range(3):  # the median of four scores, once there are so many
        track(ranker, 9.0)
    assert track(ranker, None).rank.key == (9.0,)
    runs.view.score = 1.0
    ranker.requeue(runs, generated_tokens=3, preemptions=2)
    assert runs.view.score == 1.0  # it is given once


def test_a_late_score_counts_for_the_median_and_the_guard_still_counts_from_the_arrival():
    clock = Clock()
    ranker = Ranker(pars(starve_after_s=120.0), clock)
    queue: RankedQueue[Waiting] = RankedQueue()
    late = track(ranker, carried={REQUEST_KEY: "0" * 32})
    fill(queue, late)
    clock.now_s += 50.0
    ranker.late_scores.inbox.append(LateScore("0" * 32, 7.0))
    ranker.begin_step(queue)
    assert (late.rank.key, late.rank.valid_until_s) == ((7.0,), 1120.0)
    assert not queue.pop_expired(1119.9)
    assert track(ranker, None).rank.key == (7.0,)


def test_a_request_without_a_score_keeps_its_place_when_it_loses_its_blocks():
    ranker = Ranker(pars(), Clock())
    track(ranker, 5.0)
    unscored = track(ranker, None)
    track(ranker, -50.0)
    track(ranker, -50.0)
    unscored.view.phase = Phase.ANSWERING
    ranker.requeue(unscored, generated_tokens=2, preemptions=1)
    assert unscored.rank.key == (5.0,)


class Hearing(EngineObserver):
    """A list of the reported events."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, float]] = []

    def queued(self, request: RequestView, now_s: float) -> None:
        assert request.previous is not None
        self.heard.append(("queued", now_s))

    def evicted(self, request: RequestView, now_s: float) -> None:
        self.heard.append((f"evicted {request.generated_tokens} {request.phase.name}", now_s))


def test_observers_hear_of_arrivals_and_evictions():
    clock, hearing = Clock(), Hearing()
    ranker = Ranker(pars(), clock, [hearing])
    tracked = track(ranker, 3.0)
    tracked.view.phase = Phase.ANSWERING
    ranker.requeue(tracked, generated_tokens=2, preemptions=1)
    assert hearing.heard == [("queued", 1000.0), ("evicted 2 WAITING", 1000.0)]
    assert tracked.view.preemptions == 1


@pytest.mark.parametrize(
    ("output", "num_new", "ends"),
    [
        ([1, 5, 7], 1, True),
        ([1, 5, 7, 3], 1, False),
        ([1, 5, 7, 3], 2, True),
        ([5, 7], 1, True),
        ([7], 1, False),
        ([1, 5, 5, 7], 1, True),
        ([5, 7, 5], 1, False),
        ([], 0, False),
    ],
)
def test_a_marker_may_be_cut_by_the_end_of_a_step(output, num_new, ends):
    assert ends_thinking(output, num_new, (5, 7)) == ends


@pytest.mark.parametrize(
    ("prompt", "is_over"),
    [
        ([1, 4, 5, 7], True),
        ([1, 4, 8, 5, 7, 8, 8, 8, 8], True),
        ([1, 4, 8, 5, 7, 8, 8, 8, 8, 8], False),
        ([1, 5, 7, 2, 2, 2, 2, 4], False),  # the thought of an earlier turn
        ([1, 4, 8], False),
        ([7], False),
        ([], False),
    ],
)
def test_a_thought_at_the_end_of_the_prompt_is_over_before_the_first_token(prompt, is_over):
    class Thoughts(EngineObserver):
        told: ClassVar[list[str]] = []

        def admitted(self, request: RequestView, now_s: float) -> None:
            self.told.append("admitted")

        def thinking_ended(self, request: RequestView, now_s: float) -> None:
            self.told.append("thinking ended")

    def tracked(**settings: Any) -> RankedRequest:
        ranker = Ranker(pars(), Clock(), [Thoughts()], **settings)
        tracked = track(ranker, prompt=prompt)
        ranker.admitted(tracked, 1.0)
        return tracked

    assert not tracked().thinking_over
    Thoughts.told.clear()
    assert tracked(think_end=(5, 7)).thinking_over == is_over
    assert Thoughts.told == ["admitted", *["thinking ended"] * is_over]


def test_the_mean_step_time_is_that_of_all_steps_and_overlap_is_counted_once():
    clock = Clock()
    ranker = Ranker(pars(), clock)
    for started_s, ended_s in ((1000.0, 1002.0), (1001.0, 1003.0)):
        clock.now_s = ended_s
        ranker.end_step(started_s)
    load = ranker.load
    assert (load.step, load.mean_step_s, load.last_step_end_s) == (2, 1.5, 1003.0)
