"""PARS: its order, its starvation guard, and requests without a score."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.views import LoadView, Phase, RequestView
from scheduler_adapters.workload.arrivals import poisson_arrivals_s
from scheduler_adapters.workload.requests import Requests, make_requests

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
        arrival_s=poisson_arrivals_s(count, rate_per_s=20, seed=seed),
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6), st.floats(-1e9, 1e9))
def test_constant_scores_are_fcfs(count, seed, score):
    requests = random_requests(count, seed)
    by_score = simulate(requests.with_scores(score), pars(), INSTANCE)
    by_arrival = simulate(requests, FCFS(), INSTANCE)
    np.testing.assert_array_equal(by_score.finished_s, by_arrival.finished_s)


def test_requests_without_any_score_are_served_as_fcfs():
    requests = random_requests(40, 5)
    without = simulate(requests.with_scores(np.nan), pars(), INSTANCE)
    np.testing.assert_array_equal(
        without.finished_s, simulate(requests, FCFS(), INSTANCE).finished_s
    )


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


def test_the_lowest_score_goes_first_and_ties_go_by_arrival():
    requests = make_requests(
        prompt_tokens=[5] * 4, output_tokens=[3] * 4, scores=[2.0, 1.0, 2.0, 1.0]
    )
    assert one_at_a_time(requests, pars()) == [1, 3, 0, 2]


def test_a_request_without_a_score_goes_before_those_with_one():
    requests = make_requests(
        prompt_tokens=[5] * 3, output_tokens=[3] * 3, scores=[1.0, np.nan, -5.0]
    )
    assert one_at_a_time(requests, pars()) == [1, 2, 0]


SHORT_JOB_S = 10 * 0.0106


def starving_stream() -> Requests:
    """A long job among short ones that alone keep a single seat busy for 40 s."""
    short = np.arange(400) != 1
    return make_requests(
        prompt_tokens=np.full(400, 5),
        output_tokens=np.where(short, 10, 50),
        arrival_s=np.where(short, np.maximum(np.arange(400) - 1, 0) * 0.08, 0.001),
        scores=np.where(short, 1.0, 1000.0),
    )


def test_a_starving_request_outranks_a_shorter_one_and_starves_without_the_guard():
    requests, one_seat = starving_stream(), replace(INSTANCE, max_num_seqs=1)

    guarded = simulate(requests, pars(starve_after_s=5.0), one_seat)
    unguarded = simulate(requests, pars(starve_after_s=None), one_seat)

    assert 5.0 <= guarded.scheduled_s[1] - requests.arrival_s[1] <= 5.0 + SHORT_JOB_S
    assert unguarded.scheduled_s[1] > 30.0


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 60), st.integers(0, 10**6), st.floats(0.05, 2.0))
def test_nobody_waits_longer_than_the_guard_plus_draining_what_is_ahead(count, seed, after_s):
    requests = random_requests(count, seed)
    requests = requests.with_scores(requests.output_tokens)
    timeline = simulate(requests, pars(starve_after_s=after_s), INSTANCE)
    wait_s = timeline.scheduled_s - requests.arrival_s
    # Ahead of a starving request are only the residents and what arrived before it: all of their
    # work, one by one, is an upper bound.
    alone_s = 0.0125 * requests.output_tokens + 0.02 * np.ceil(requests.prompt_tokens / 32)
    assert (wait_s <= after_s + 3 * alone_s.sum() + 1.0).all()


def test_a_running_request_is_ranked_as_the_engine_would():
    running = RequestView("r", 0, 10.0, 5, score=3.0, phase=Phase.ANSWERING)
    assert pars().rank(running, LoadView(now_s=500.0)).key == ()
