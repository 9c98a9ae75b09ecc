"""The place of requests without a score: a median that follows the scores and does not jitter."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, strategies as st

from scheduler_adapters.planner.recent_median import WINDOW, RecentMedian
from scheduler_adapters.views import RequestView
from tests.scheduler_adapters.simulator.reference import median_of


@given(st.lists(st.integers(-50, 50), max_size=3 * WINDOW))
def test_the_value_is_the_median_when_last_taken(scores):
    median = RecentMedian()
    assert median.value is None
    for count, score in enumerate(scores, start=1):
        median.add(score)
        assert median.value == median_of(scores[:count])


def test_it_follows_another_ranker_within_two_windows():
    median = RecentMedian()
    for score in range(WINDOW):
        median.add(score)
    before = median.value
    assert before == WINDOW // 2 - 1
    for _ in range(WINDOW - 1):
        median.add(1e6)
        assert median.value == before
    median.add(1e6)
    assert median.value == 1e6


def test_an_arrival_is_counted_or_gets_the_median_and_not_both():
    median = RecentMedian()
    views = [RequestView(str(n), n, 0.0, 5, score=s) for n, s in enumerate([None, 4.0, None, 9.0])]
    for view in views:
        median.arrived(view)
    assert [view.median_score for view in views] == [None, None, 4.0, None]
    assert median.value == 4.0


def seen(score: float | None = None, **fields) -> RequestView:
    return RequestView("", 0, 0.0, 5, score=score, **fields)


def used(pairs=()) -> RecentMedian:
    """Scores 1 to 16 have arrived, and answers with these scores and lengths have ended."""
    median = RecentMedian()
    for score in range(1, 17):
        median.arrived(seen(float(score)))
    for score, length in pairs:
        median.finished(seen(score), length)
    return median


PAIRS = [(n / 16, 100 * n) for n in range(1, 257)] * 3


@pytest.mark.parametrize("pairs", [[], PAIRS[:1], PAIRS])
@pytest.mark.parametrize("score", [-5.0, 3.0, 99.0, None])
@pytest.mark.parametrize(
    ("limits", "place"),
    [
        ((0, 4), "first"),
        ((4, 4), "first"),
        ((100_000, inf), "last"),
        ((100_000, 100_000), "last"),
        ((0, 100_000), None),  # beyond all lengths, a limit says nothing
        ((4, inf), None),
        ((0, inf), None),
    ],
)
def test_a_score_keeps_to_the_limits_that_the_request_gives(pairs, score, limits, place):
    used(pairs).arrived(view := seen(score, limits=limits))
    kept, expected = view.median_score if score is None else view.score, score or 8.0
    if place == "first":
        assert kept < 1.0
    elif place == "last":
        assert kept > 16.0
    else:
        assert kept == expected


def test_limits_decide_from_the_second_request_on():
    median = RecentMedian()
    for count in range(1, 64):
        median.arrived(seen(7.0 + count % 5))
        median.arrived(short := seen(9.0, limits=(0, 4)))
        median.arrived(long := seen(9.0, limits=(600, 600)))
        assert short.score < 9.0 < long.score or count == 1


def test_a_known_length_has_the_score_of_that_length():
    for tokens, score in ((50, 1.0), (6400, 4.0), (12_800, 8.0), (25_000, 16.0)):
        for own in (-5.0, 99.0):
            used(PAIRS).arrived(view := seen(own, limits=(tokens, tokens)))
            assert view.score == pytest.approx(score, abs=1.0)
    median = used([(n / 16, 100 * (n // 64)) for n in range(256)])
    for own, score in ((-5.0, 4.0), (6.0, 6.0), (99.0, 8.0)):
        median.arrived(view := seen(own, limits=(100, 100)))
        assert view.score == pytest.approx(score, abs=0.2)


def test_answers_cut_by_their_limit_are_no_pairs():
    median = used(PAIRS)
    for _ in range(1024):
        median.finished(seen(1.0, limits=(0, 12_800)), 12_800)
    median.arrived(view := seen(99.0, limits=(0, 12_800)))
    assert view.score == pytest.approx(8.0, abs=0.5)


def test_predicted_lengths_are_the_scale_and_are_cut_too():
    median = RecentMedian()
    for score in [*range(1, 257)] * 3:
        view = seen(float(score), quantiles=((0.5, 10.0 * score), (0.9, 20.0 * score)))
        median.arrived(view)
        median.finished(view, 1)  # does not count
    limited = seen(200.0, quantiles=((0.5, 2000.0), (0.9, 4000.0)), limits=(0, 1280))
    median.arrived(limited)
    assert limited.score == pytest.approx(128.0, abs=3.0)
    assert limited.quantiles == ((0.5, 1280), (0.9, 1280))


def test_a_limit_before_the_first_score_changes_nothing():
    median = RecentMedian()
    median.arrived(view := seen(7.0, limits=(4, 4)))
    assert view.score == 7.0
    assert median.value == 7.0


def test_known_lengths_are_in_order_in_the_first_burst():
    median, views = RecentMedian(), []
    for number in range(64):
        tokens = 40 + number * 37 % 64
        views.append(seen(float(number), limits=(tokens, tokens)))
        median.arrived(views[-1])
    late = sorted(views[32:], key=lambda view: view.limits)
    assert np.corrcoef([view.score for view in late], range(32))[0, 1] > 0.99
