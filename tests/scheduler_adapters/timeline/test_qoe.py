"""QoE against its definition, token by token, and against cases worked out on paper."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from scheduler_adapters.timeline.qoe import (
    first_answer_tail,
    qoe,
    reading_figures,
    tail_percent,
    violation_fraction,
)
from scheduler_adapters.timeline.timeline import Timeline, timeline_from_token_times
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.timeline.test_columns import recorded

PACE_S = 0.1


def by_definition(token_s: list[float], expected_s: float, pace_s: float) -> float:
    read_s = [token_s[0]]
    for one in token_s[1:]:
        read_s.append(max(one, read_s[-1] + pace_s))
    end_s = read_s[-1] + pace_s
    ideal = [end_s - (expected_s + j * pace_s) for j in range(len(read_s))]
    return sum(end_s - one for one in read_s) / sum(ideal)


@settings(max_examples=60)
@given(st.lists(st.sets(st.integers(0, 25), min_size=1), min_size=1, max_size=6), st.data())
def test_runs_give_what_the_definition_gives_token_by_token(ticks, data):
    ticks_of = [sorted(each) for each in ticks]
    thinking = [data.draw(st.integers(0, len(each))) for each in ticks_of]
    tbt_s = [data.draw(st.sampled_from([np.nan, 0.05, 0.3])) for _ in ticks_of]
    gaps_s = data.draw(st.lists(st.floats(0.01, 0.5), min_size=26, max_size=26))
    tick_s = np.cumsum(gaps_s).tolist()
    record = recorded(ticks_of, tick_s)
    requests = make_requests(
        prompt_tokens=[1] * len(ticks_of),
        output_tokens=[len(each) for each in ticks_of],
        reasoning_tokens=thinking,
        tbt_s=tbt_s,
    )
    timeline = record.timeline(requests, np.zeros(len(ticks_of), np.bool_))
    for target_s in (None, 0.25):
        values = qoe(timeline, ttfat_target_s=target_s)
        for row, own in enumerate(ticks_of):
            token_s = [tick_s[tick] for tick in own]
            answers = token_s[thinking[row] :]
            if not answers:
                assert np.isnan(values[row])
                continue
            expected_s = answers[0]
            if target_s is not None:
                since_s = token_s[thinking[row] - 1] if thinking[row] else 0.0
                expected_s = min(answers[0], since_s + target_s)
            pace_s = PACE_S if np.isnan(tbt_s[row]) else tbt_s[row]
            expected = by_definition(answers, expected_s, pace_s)
            assert values[row] == pytest.approx(expected, rel=1e-9)


def test_requests_below_the_slo_count_among_those_that_answer():
    assert violation_fraction(np.array([1.0, 0.94, np.nan, 0.95])) == pytest.approx(1 / 3)
    assert np.isnan(violation_fraction(np.array([np.nan])))


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


def test_bins_are_of_256_reasoning_tokens_and_small_ones_are_out():
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
