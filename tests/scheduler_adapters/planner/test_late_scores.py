"""Late scores are matched with their requests by key; held requests wait for theirs."""

from math import inf
from typing import Any

import pytest

from scheduler_adapters.planner.late_scores import MAX_KEPT, LateScore, LateScores, late_score
from scheduler_adapters.planner.ranked_queue import RankedQueue
from scheduler_adapters.planner.request_annotations import (
    QUANTILES,
    REQUEST_KEY,
    SCORE,
    AnnotationCounts,
)
from scheduler_adapters.planner.request_tracker import RequestTracker
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policy import load_policy
from tests.scheduler_adapters.engines.decisions import Clock
from tests.scheduler_adapters.planner.waiting import (
    Waiting,
    fill,
    number_of,
    still_clock,
    track,
)


def test_a_score_finds_the_requests_that_wait_for_it_once():
    late: LateScores[str] = LateScores()
    assert late.expect("a", "first sample") is None
    assert late.expect("a", "second sample") is None
    assert late.expect("b", "other") is None
    late.inbox.append(LateScore("a", 3.0))
    assert list(late.take()) == [
        ("first sample", LateScore("a", 3.0)),
        ("second sample", LateScore("a", 3.0)),
    ]
    late.inbox.append(LateScore("a", 4.0))
    assert list(late.take()) == []


def test_an_early_score_is_kept_for_all_samples_of_its_request():
    late: LateScores[str] = LateScores()
    late.inbox.append(LateScore("a", 3.0))
    assert list(late.take()) == []
    assert late.expect("a", "first sample") == late.expect("a", "second") == LateScore("a", 3.0)


def test_a_key_that_was_forgotten_may_be_used_again():
    late: LateScores[str] = LateScores()
    late.expect("a", "gone")
    late.inbox.append(LateScore("b", 1.0))
    assert not list(late.take())
    late.forget("a")
    late.forget("b")
    late.forget("never seen")
    assert late.expect("b", "new") is None
    late.inbox.append(LateScore("a", 2.0))
    assert list(late.take()) == []


def test_only_the_newest_are_remembered():
    late: LateScores[int] = LateScores()
    for number in range(MAX_KEPT + 1):
        late.expect(f"waits {number}", number)
        late.inbox.append(LateScore(f"early {number}", 0.0))
    assert len(late.inbox) == MAX_KEPT
    assert not list(late.take())
    late.inbox += [LateScore("waits 0", 1.0), LateScore("waits 1", 1.0)]
    assert [item for item, _ in late.take()] == [1]
    assert late.expect("early 0", -1) is None
    assert late.expect(f"early {MAX_KEPT}", -1) is not None


def test_a_late_score_is_read_from_hints_or_not_at_all():
    hints = {SCORE: 3, QUANTILES: [0.5, 210, 0.9, 640]}
    assert late_score("a", hints) == LateScore("a", 3.0, ((0.5, 210.0), (0.9, 640.0)))
    assert late_score(None, hints) is None
    for unusable in ({}, {SCORE: float("nan")}, {SCORE: "3"}, {QUANTILES: [0.5, 210]}):
        assert late_score("a", unusable) is None


class Scoring:
    """A tracker beside the engine: it scores nothing until the engine waits for it."""

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


def burst_of(
    scoring: Scoring, count: int, clock: Clock
) -> tuple[RequestTracker, RankedQueue[Waiting]]:
    tracker = RequestTracker(pars(), clock, scoring=scoring)
    queue: RankedQueue[Waiting] = RankedQueue()
    fill(queue, *(track(tracker, None) for _ in range(count)))
    return tracker, queue


def numbers(queue: RankedQueue[Waiting]) -> list[int]:
    return [number_of(item) for item in queue]


def test_an_idle_engine_waits_for_the_scores_of_a_burst():
    scoring = Scoring({"0": 3.0, "1": 1.0, "2": None, "3": 2.0})
    tracker, queue = burst_of(scoring, 4, still_clock())
    assert (len(queue), len(queue.held)) == (0, 4)
    assert tracker.load.num_waiting == 4
    tracker.begin_step(queue, num_free=2, is_idle=True)
    assert numbers(queue) == [1, 2, 3, 0]  # 2 at the median of the two scores before it
    assert (scoring.waits_s, queue.held) == ([5.0], {})
    for item in queue:
        tracker.admitted(item.lengthwise, tracker.load.now_s)
    assert tracker.annotation_counts == AnnotationCounts(scored=3, unscored=1, undecodable=1)


def test_a_request_is_held_until_its_score_or_a_deadline():
    clock, scoring = still_clock(), Scoring({})
    tracker, queue = burst_of(scoring, 3, clock)
    tracker.begin_step(queue, num_free=2, is_idle=False)
    assert (len(queue), len(queue.held), tracker.load.num_waiting) == (0, 3, 3)
    tracker.late_scores.inbox.append(LateScore("1", 4.0))
    tracker.begin_step(queue, num_free=2, is_idle=False)
    assert (numbers(queue), [*queue.held]) == ([1], [0, 2])
    assert queue.remove(2) is not None  # its client has left
    clock.now_s += 5.0
    tracker.begin_step(queue, num_free=1, is_idle=False)
    assert (numbers(queue), queue.held, scoring.waits_s) == ([0, 1], {}, [])  # 0 at the median, 4
    tracker.late_scores.inbox.append(LateScore("0", 9.0))
    tracker.begin_step(queue)
    assert numbers(queue) == [1, 0]


def test_requests_that_start_at_once_are_neither_held_nor_scored():
    scoring = Scoring({"1": 3.0})
    tracker, queue = burst_of(scoring, 2, still_clock())
    tracker.begin_step(queue, num_free=2, num_tokens=100, is_idle=True)
    assert (numbers(queue), queue.held, scoring.submitted) == ([0, 1], {}, [])
    assert not tracker.late_scores._waiting  # nothing is kept of them
    first = queue.remove(0)  # it has started, while the other lacked memory
    tracker.admitted(first.lengthwise, tracker.load.now_s)
    tracker.begin_step(queue, num_free=1)
    assert [key for key, _ in scoring.submitted] == ["1"]
    scoring.wait(0)
    tracker.begin_step(queue, num_free=1)
    assert tracker.annotation_counts == AnnotationCounts(unscored=1, late=1, at_once=1)


@pytest.mark.parametrize("scarce", [{"num_free": 1}, {"num_free": 2, "num_tokens": 1}])
def test_requests_are_scored_where_seats_or_tokens_lack(scarce):
    scoring = Scoring({})
    tracker, queue = burst_of(scoring, 2, still_clock())
    tracker.begin_step(queue, **scarce)
    assert [key for key, _ in scoring.submitted] == ["0", "1"]
    assert [*queue.held] == [0, 1]


def test_an_eviction_gives_an_unscored_request_its_score():
    scoring = Scoring({})
    tracker, queue = burst_of(scoring, 1, still_clock())
    tracker.begin_step(queue, num_free=1)
    (item,) = queue
    queue.remove(0)
    tracker.begin_step(queue, num_free=1)
    tracker.requeue(item.lengthwise, generated_tokens=1, preemptions=1)
    assert [key for key, _ in scoring.submitted] == ["0"]


@pytest.mark.parametrize("policy", ["pars", "srpt"])
def test_all_are_scored_at_arrival_if_running_ones_are_ranked(policy):
    scoring = Scoring({}, score_all=policy == "pars")
    track(RequestTracker(load_policy(policy), still_clock(), scoring=scoring), None)
    assert [key for key, _ in scoring.submitted] == ["0"]


def test_requests_beyond_the_rankers_queue_are_not_held():
    tracker, queue = burst_of(Scoring({}, most=1), 2, still_clock())
    tracker.begin_step(queue)
    assert (numbers(queue), [*queue.held]) == ([1], [0])
    assert tracker.annotation_counts == AnnotationCounts(full=1)


def test_a_request_scored_elsewhere_is_not_scored_again():
    scoring = Scoring({})
    tracker = RequestTracker(pars(), still_clock(), scoring=scoring)
    for carried in ({"lengthwise_score": 1.0}, {REQUEST_KEY: "0" * 32}):
        tracked = track(tracker, carried=carried)
        assert (scoring.submitted, tracked.held_until_s) == ([], -inf)
