"""Metrics against a timeline worked out on paper."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from scheduler_adapters.timeline.latency_metrics import statistic, summarize, token_gaps
from scheduler_adapters.timeline.timeline import timeline_from_token_times
from scheduler_adapters.workload.requests import make_requests


@pytest.fixture
def by_hand():
    """Three requests: one of three tokens, one of one token, one that never finished."""
    requests = make_requests(
        arrival_s=[0.0, 1.0, 2.0],
        prompt_tokens=[10, 10, 10],
        output_tokens=[3, 1, 5],
        reasoning_tokens=[1, 0, 4],
    )
    return timeline_from_token_times(
        requests,
        [[1.0, 1.5, 3.0], [2.0], [4.0, 4.25]],
        scheduled_s=[0.5, 1.5, 3.0],
        preemptions=[0, 0, 2],
        answer_scheduled_s=[1.25, np.nan, np.nan],
    )


def test_every_metric_is_what_the_definition_gives_by_hand(by_hand):
    summary = summarize(by_hand)

    assert (summary.num_requests, summary.num_finished, summary.num_unfinished) == (3, 2, 1)
    assert summary.num_preemptions == 2
    assert summary.makespan_s == pytest.approx(4.25)
    assert summary.output_tokens_per_s == pytest.approx(6 / 4.25)
    # TTFT: 1, 1, 2
    assert summary.ttft_s.mean == pytest.approx(4 / 3)
    assert summary.ttft_s.p50 == pytest.approx(1.0)
    assert summary.ttft_s.p90 == pytest.approx(1.8)
    # First answering token: 1.5 - 0, 2 - 1; the third is still thinking.
    assert summary.first_answer_s.count == 2
    assert summary.first_answer_s.mean == pytest.approx(1.25)
    # The end of reasoning is the first token's time; the second does not reason.
    assert summary.ttfat_s.count == 1
    assert summary.ttfat_s.mean == pytest.approx(0.5)
    # The step of its answer began at 1.25 s, a quarter of a second after its reasoning ended.
    assert summary.blocking_s.count == 1
    assert summary.blocking_s.mean == pytest.approx(0.25)
    # Read at 1.5 and 3 s, ideally at 1.5 and 1.6, until 3.1: (1.6 + .1) / (1.6 + 1.5)
    assert summary.qoe.count == 2
    assert summary.qoe.mean == pytest.approx((1 + 1.7 / 3.1) / 2)
    assert summary.qoe_violations == 0.5
    # Gaps: .5, 1.5, .25
    assert summary.tbt_s.count == 3
    assert summary.tbt_s.mean == pytest.approx(0.75)
    # TPOT: (3 - 1) / 2; undefined for one token and for the unfinished.
    assert summary.tpot_s.count == 1
    assert summary.tpot_s.mean == pytest.approx(1.0)
    # E2E: 3, 1; per token 1, 1.
    assert summary.e2e_s.mean == pytest.approx(2.0)
    assert summary.normalized_latency_s.mean == pytest.approx(1.0)
    # Queueing: .5, .5, 1
    assert summary.queueing_s.mean == pytest.approx(2 / 3)


def test_nothing_measured_is_nan_and_not_zero():
    requests = make_requests(prompt_tokens=[1], output_tokens=[5])
    summary = summarize(timeline_from_token_times(requests, [[]]))

    assert summary.num_unfinished == 1
    assert summary.e2e_s.count == 0
    assert np.isnan(summary.e2e_s.mean)
    assert np.isnan(summary.ttft_s.p99)


@given(
    st.lists(
        st.tuples(st.floats(-1e6, 1e6), st.integers(min_value=1, max_value=5)),
        min_size=1,
        max_size=30,
    )
)
def test_counted_percentiles_are_those_of_the_written_out_list(pairs):
    values = np.array([value for value, _ in pairs])
    counts = np.array([count for _, count in pairs])
    written_out = np.repeat(values, counts)

    got = statistic(values, counts)

    assert got.count == len(written_out)
    assert got.mean == pytest.approx(written_out.mean(), abs=1e-6)
    for q in (50, 90, 99):
        assert getattr(got, f"p{q}") == pytest.approx(np.percentile(written_out, q), abs=1e-6)


@given(st.lists(st.lists(st.floats(0.001, 10.0), max_size=8), min_size=1, max_size=8))
def test_pooled_gaps_are_those_of_each_request(gaps_per_request):
    token_s = [np.cumsum(gaps) for gaps in gaps_per_request]
    requests = make_requests(
        prompt_tokens=np.ones(len(token_s)), output_tokens=np.full(len(token_s), 9)
    )
    sizes, counts = token_gaps(timeline_from_token_times(requests, token_s))

    expected = np.sort(np.concatenate([np.diff(times) for times in token_s]))
    np.testing.assert_allclose(np.sort(np.repeat(sizes, counts)), expected, atol=1e-12)
