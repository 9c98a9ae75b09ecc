"""The overtaking guard: its limit on overtaking, and its independence of the scale of scores."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.overtaking_guard import OvertakingGuard
from scheduler_adapters.policies.shortest_predicted import ShortestPredicted, StarvationGuard
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView
from tests.scheduler_adapters.policies.test_shortest_predicted import INSTANCE, random_requests


class Noting(OvertakingGuard):
    """The guard, and the limit of each request at its arrival."""

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        if not hasattr(self, "limit"):
            self.limit: dict[int, float] = {}
        self.limit.setdefault(request.number, self.at_least + self.times * load.num_waiting)
        return super().rank(request, load)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 120), st.integers(0, 10**6), st.floats(0, 3), st.integers(0, 20))
def test_a_request_is_passed_by_no_more_arrivals_than_its_limit(count, seed, times, least):
    scores = np.random.default_rng(seed).integers(0, 9, count).astype(float)
    scores[::5] = np.nan
    policy, requests = Noting(times=times, at_least=least), random_requests(count, seed)
    began_s = simulate(requests.with_scores(scores), policy, INSTANCE).scheduled_s
    for number, limit in policy.limit.items():
        passed_by = np.flatnonzero(began_s[number + 1 :] < began_s[number]) + 1
        assert passed_by.max(initial=0) <= limit


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 60), st.integers(0, 10**6), st.floats(-1e9, 1e9) | st.just(np.nan))
def test_constant_scores_none_and_no_yielding_are_fcfs(count, seed, score):
    requests = random_requests(count, seed)
    fcfs = simulate(requests, FCFS(), INSTANCE).finished_s
    patient = OvertakingGuard(times=0, at_least=0)
    scored = requests.with_scores(requests.output_tokens)
    for some, policy in ((requests.with_scores(score), OvertakingGuard()), (scored, patient)):
        served = simulate(some, policy, INSTANCE)
        if not served.preemptions.any():
            np.testing.assert_array_equal(served.finished_s, fcfs)


def test_a_long_request_yields_to_its_limit_and_an_evicted_never():
    guard, load = OvertakingGuard(times=2, at_least=10), LoadView(num_waiting=5)
    long = RequestView("a", 7, 0.0, 3, score=9.0, recent_scores=(1.0, 5.0))
    assert guard.rank(long, load) == Rank((27.0,))
    assert guard.rank(replace(long, score=3.0), load).key[0] == pytest.approx(8)
    assert guard.rank(replace(long, preemptions=1), load) == Rank((7.0,))
    assert guard.rank(replace(long, phase=Phase.ANSWERING), load) == Rank()


def test_pars_limits_overtaking_and_its_paper_the_wait():
    for name in ("pars", "pointwise", "listwise", "oracle"):
        assert type(load_policy(name)) is OvertakingGuard
        for own in ({"guard": "waiting"}, {"starve_after_s": 120}):
            guard = load_policy(name, **own)
            assert vars(guard).keys() == vars(load_policy("pars-paper")).keys()
            assert (type(guard), guard.after_s) == (StarvationGuard, 120)
        for unguarded in ({"guard": "none"}, {"starve_after_s": None}):
            assert type(load_policy(name, **unguarded)) is ShortestPredicted
    assert load_policy("pars-paper", starve_after_s=60).after_s == 60
