"""PARS: its order, its starvation guard, and requests without a score."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import ArrayLike

from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.workload.arrivals import arrivals_s
from scheduler_adapters.workload.requests import Floats, Requests, make_requests

INSTANCE = Instance(
    latency=AffineLatency(base_s=0.01, per_token_s=1e-4),
    kv_blocks=80,
    max_num_seqs=4,
    max_tokens=64,
)


def random_requests(count: int, seed: int) -> Requests:
    random = np.random.default_rng(seed)
    return make_requests(
        prompt_tokens=random.integers(1, 100, count),
        output_tokens=random.integers(1, 60, count),
        arrival_s=arrivals_s(count, rate_per_s=20, seed=seed),
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6), st.floats(-1e9, 1e9) | st.just(np.nan))
def test_constant_scores_and_none_are_fcfs(count, seed, score):
    requests = random_requests(count, seed)
    by_score = simulate(requests.with_scores(score), pars(), INSTANCE)
    by_arrival = simulate(requests, FCFS(), INSTANCE)
    np.testing.assert_array_equal(by_score.finished_s, by_arrival.finished_s)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_only_the_order_of_the_scores_matters(count, seed):
    requests = random_requests(count, seed)
    oracle = simulate(requests.with_scores(requests.output_tokens), pars(), INSTANCE)
    stretched = simulate(
        requests.with_scores(np.exp(requests.output_tokens / 10.0)), pars(), INSTANCE
    )
    np.testing.assert_array_equal(oracle.finished_s, stretched.finished_s)


def one_at_a_time(requests: Requests, policy) -> list[int]:
    """Rows in the order in which an instance with a single seat starts them."""
    timeline = simulate(requests, policy, replace(INSTANCE, max_num_seqs=1))
    return np.argsort(timeline.scheduled_s, kind="stable").tolist()


@pytest.mark.parametrize(
    ("scores", "order"),
    [
        ([2.0, 1.0, 2.0, 1.0], [1, 3, 0, 2]),
        # The median of those before it is 1: its equals before it go first.
        ([4.0, 1.0, np.nan, 9.0, 2.0, 1.0, 8.0], [1, 2, 5, 4, 0, 6, 3]),
        ([np.nan, np.nan, 3.0, -5.0], [0, 1, 3, 2]),
    ],
)
def test_lowest_score_first_with_the_median_where_one_is_missing(scores, order):
    assert one_at_a_time(jobs(scores), pars()) == order


def test_requests_without_a_score_go_by_arrival_among_themselves():
    scores = np.tile([5.0, 1.0, 9.0, np.nan], 60)  # the median is taken anew eight times
    requests = make_requests(prompt_tokens=[5] * 240, output_tokens=[2] * 240, scores=scores)
    settled = [row for row in one_at_a_time(requests, pars()) if np.isnan(scores[row]) and row > 8]
    assert settled == sorted(settled)


def jobs(scores: ArrayLike, arrival_s: ArrayLike = 0.0) -> Requests:
    """Requests of .106 s each where they have the seat to themselves."""
    count = len(np.asarray(scores))
    return make_requests(
        prompt_tokens=[5] * count, output_tokens=[10] * count, arrival_s=arrival_s, scores=scores
    )


def waits_s(requests: Requests, *, starve_after_s: float | None) -> Floats:
    policy, one_seat = pars(starve_after_s=starve_after_s), replace(INSTANCE, max_num_seqs=1)
    return simulate(requests, policy, one_seat).scheduled_s - requests.arrival_s


def test_requests_scored_before_an_outage_are_not_passed_by_all():
    # Eleven scores, then the scoring service is gone and requests come faster than they are served.
    requests = jobs(
        [*np.arange(11.0), *[np.nan] * 390], [0.0] * 11 + [0.01 + 0.08 * n for n in range(390)]
    )
    wait_s = waits_s(requests, starve_after_s=None)
    assert wait_s[:4].max() <= 4 * SHORT_JOB_S  # up to the median, which is that of eight scores
    assert wait_s[4:11].min() > 30.0  # above it: as of any shorter request, the guard's affair
    assert waits_s(requests, starve_after_s=3.0)[4:11].max() <= 3.0 + 12 * SHORT_JOB_S


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_with_some_scores_missing_both_kinds_wait_alike(share):
    random = np.random.default_rng(1)
    scores = random.exponential(size=400)
    scores[random.random(400) < share] = np.nan
    wait_s = waits_s(jobs(scores), starve_after_s=None)
    without = np.isnan(scores)
    assert 0.7 < wait_s[without].mean() / wait_s[~without].mean() < 1.3


SHORT_JOB_S = 10 * 0.0106


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 60), st.integers(0, 10**6), st.floats(0.05, 2.0), st.floats(0, 1))
def test_nobody_waits_longer_than_the_guard_plus_what_is_ahead(count, seed, after_s, missing):
    requests = random_requests(count, seed)
    gone = np.random.default_rng(seed).random(count) < missing
    requests = requests.with_scores(np.where(gone, np.nan, requests.output_tokens))
    timeline = simulate(requests, pars(starve_after_s=after_s), INSTANCE)
    wait_s = timeline.scheduled_s - requests.arrival_s
    # Ahead of a starving request are only the residents and what arrived before it: all of their
    # work, one by one, is an upper bound.
    alone_s = 0.0125 * requests.output_tokens + 0.02 * np.ceil(requests.prompt_tokens / 32)
    assert (wait_s <= after_s + 3 * alone_s.sum() + 1.0).all()
