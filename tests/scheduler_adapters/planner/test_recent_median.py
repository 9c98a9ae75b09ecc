"""The place of requests without a score: a median that follows the scores and does not jitter."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_adapters.planner.recent_median import WINDOW, RecentMedian
from scheduler_adapters.views import RequestView
from tests.scheduler_adapters.simulator.reference import median_of, newest_of


@given(st.lists(st.integers(-50, 50), max_size=3 * WINDOW))
def test_it_is_the_median_of_the_newest_scores_at_the_last_moment_it_was_taken(scores) -> None:
    median = RecentMedian()
    assert median.value is None
    for count, score in enumerate(scores, start=1):
        median.add(score)
        assert median.value == median_of(scores[:count])


def test_it_stands_still_between_two_windows_and_follows_another_ranker_within_two() -> None:
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


def test_an_arrival_is_counted_or_gets_the_median_and_not_both() -> None:
    median = RecentMedian()
    views = [RequestView(str(n), n, 0.0, 5, score=s) for n, s in enumerate([None, 4.0, None, 9.0])]
    for view in views:
        median.arrived(view)
    assert [view.median_score for view in views] == [None, None, 4.0, None]
    assert median.value == 4.0


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=2 * WINDOW), st.integers(-6, 6))
def test_a_score_has_its_share_among_the_recent_ones_and_an_equal_one_counts_half(
    scores, score
) -> None:
    median, view = RecentMedian(), RequestView("", 0, 0.0, 5, score=score)
    for one in scores:
        median.add(one)
    median.arrived(view)
    recent = newest_of(scores)
    below = sum((one < score) + 0.5 * (one == score) for one in recent)
    assert view.score_share == below / len(recent)
    assert (
        RequestView("", 0, 0.0, 5).score_share == RequestView("", 0, 0.0, 5, 3.0).score_share == 0.5
    )
