"""The overtaking guard: its limit on later arrivals, and the order of scores before it."""

from dataclasses import replace

import numpy as np
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


@settings(max_examples=500, deadline=None)
@given(st.integers(2, 120), st.integers(0, 10**6), st.floats(0, 3), st.integers(0, 20))
def test_a_request_is_passed_by_no_more_arrivals_than_its_limit(count, seed, times, least):
    scores = np.random.default_rng(seed).integers(0, 9, count).astype(float)
    scores[::5] = np.nan
    requests = random_requests(count, seed).with_scores(scores)
    policy = Noting(ShortestPredicted(), times=times, at_least=least)
    began_s = simulate(requests, policy, INSTANCE).scheduled_s
    for number, limit in policy.limit.items():
        assert np.sum(began_s[number + 1 :] < began_s[number]) <= limit


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 120), st.integers(0, 10**6))
def test_scores_decide_until_a_limit_is_reached(count, seed):
    requests = random_requests(count, seed)
    requests = requests.with_scores(requests.output_tokens)
    free = simulate(requests, ShortestPredicted(), INSTANCE)
    patient = simulate(requests, OvertakingGuard(ShortestPredicted(), at_least=count), INSTANCE)
    if not free.preemptions.any():
        np.testing.assert_array_equal(patient.scheduled_s, free.scheduled_s)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 60), st.integers(0, 10**6), st.floats(-1e9, 1e9) | st.just(np.nan))
def test_constant_scores_none_and_no_yielding_are_fcfs(count, seed, score):
    requests = random_requests(count, seed)
    fcfs = simulate(requests, FCFS(), INSTANCE).finished_s
    patient, usual = (OvertakingGuard(ShortestPredicted(), at_least=n, times=n) for n in (0, 256))
    scored = requests.with_scores(requests.output_tokens)
    for some, policy in ((requests.with_scores(score), usual), (scored, patient)):
        served = simulate(some, policy, INSTANCE)
        if not served.preemptions.any():
            np.testing.assert_array_equal(served.finished_s, fcfs)


def test_a_late_score_keeps_the_limit_and_a_preempted_is_first():
    guard = OvertakingGuard(ShortestPredicted(), times=2, at_least=10)
    long = RequestView("a", 7, 0.0, 3)
    first = guard.rank(long, LoadView(num_started=9, num_waiting=5))
    assert first == Rank(valid_until_started=29, then=Rank())
    late, load = replace(long, score=9.0, previous=first), LoadView(num_started=20, num_waiting=80)
    assert guard.rank(late, load) == Rank((9.0,), valid_until_started=29, then=Rank())
    assert guard.rank(replace(late, previous=first.then), load) == Rank()
    assert guard.rank(replace(late, preemptions=1), load) == Rank()
    assert guard.rank(replace(late, phase=Phase.ANSWERING), LoadView()) == Rank()


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
