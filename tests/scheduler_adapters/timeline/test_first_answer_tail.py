"""Bins of the tail, their percentiles, and the same by user class."""

import numpy as np
import pytest

from scheduler_adapters.timeline.first_answer_tail import (
    first_answer_tail,
    reading_figures,
    tail_percent,
)
from scheduler_adapters.timeline.timeline import Timeline, timeline_from_token_times
from scheduler_adapters.workload.requests import make_requests


def answered(reasoning: list[int], first_answer_s: list[float], user_class="") -> Timeline:
    """Requests that arrive at 0 s; their last reasoning token comes a second before the answer."""
    requests = make_requests(
        prompt_tokens=[1] * len(reasoning),
        output_tokens=[tokens + 1 for tokens in reasoning],
        reasoning_tokens=reasoning,
        user_class=user_class,
    )
    token_s = [
        [at_s - 1] * tokens + [at_s] * (at_s == at_s)
        for tokens, at_s in zip(reasoning, first_answer_s, strict=True)
    ]
    return timeline_from_token_times(requests, token_s)


@pytest.mark.parametrize(
    ("count", "percent"), [(5, 100), (9, 100), (10, 90), (19, 90), (20, 95), (99, 95), (100, 99)]
)
def test_smaller_bins_have_lower_percentiles(count, percent):
    assert tail_percent(count) == percent


def test_bins_are_of_256_reasoning_tokens_and_small_ones_are_left_out():
    reasoning = [255] * 5 + [256] * 4 + [512] * 10
    first_s = [*range(2, 7), *range(10, 14), *range(20, 30)]
    tail = first_answer_tail(answered(reasoning, [float(at_s) for at_s in first_s]))
    assert [(one["reasoning_tokens"], one["count"], one["percent"]) for one in tail] == [
        (0, 5, 100.0),
        (512, 10, 90.0),
    ]
    assert tail[0]["first_answer_s"] == 6.0
    assert tail[1]["first_answer_s"] == pytest.approx(np.percentile(range(20, 30), 90))


def test_requests_without_an_answer_are_in_no_bin():
    tail = first_answer_tail(answered([300] * 6, [2.0, 3.0, 4.0, 5.0, 6.0, np.nan]))
    assert tail[0]["count"] == 5


def test_classes_have_a_tail_of_their_own():
    timeline = answered([300] * 10, [float(at_s) for at_s in range(2, 12)], ["a", "b"] * 5)
    figures = reading_figures(timeline)
    assert figures["first_answer_tail"][0]["count"] == 10
    assert figures["by_class"]["a"]["first_answer_tail"][0]["first_answer_s"] == 10.0
    assert figures["by_class"]["b"]["qoe_violations"] == 0.0
    assert "by_class" not in reading_figures(answered([300] * 5, [2.0] * 5))
    assert reading_figures(answered([0] * 5, [2.0] * 5)) == {}
