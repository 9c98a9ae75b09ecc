"""Admissions past a lower score, against a count of the waiting requests one by one."""

from math import isnan

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from scheduler_adapters.engines.score_order import ScoreOrder, past_lower_score_fraction
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import pars, pars_paper
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.views import RequestView
from tests.scheduler_adapters.policies.test_shortest_predicted import INSTANCE, random_requests


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 60),
    st.integers(0, 10**6),
    st.sampled_from(
        [
            FCFS(),
            pars_paper(starve_after_s=None),
            pars_paper(starve_after_s=0.5),
            pars(times=0.5, at_least=2),
        ]
    ),
)
def test_admissions_past_a_lower_score_are_counted(count, seed, policy):
    scores = np.random.default_rng(seed).integers(0, 9, count).astype(float)
    order, requests = ScoreOrder(), random_requests(count, seed).with_scores(scores)
    timeline = simulate(requests, policy, INSTANCE, observers=[order])
    began_s, arrival_s = timeline.scheduled_s, requests.arrival_s
    past = [
        bool((scores[(arrival_s <= now_s) & (began_s > now_s)] < score).any())
        for now_s, score in zip(began_s, scores, strict=True)
    ]
    assert order.num_past_lower_score == sum(past)
    assert past_lower_score_fraction([order, ScoreOrder()]) == pytest.approx(sum(past) / count)
    if policy.name == "shortest-predicted":
        assert not any(past)


def test_a_request_without_a_score_is_passed_by_none():
    order, views = ScoreOrder(), [RequestView(str(n), n, 0.0, 1, score=5.0 - n) for n in range(9)]
    for view in (*views, RequestView("unscored", 9, 0.0, 1)):
        order.queued(view, 0.0)
    for view in views[1:]:
        order.withdrawn(view, 1.0)
    order.admitted(views[0], 2.0)
    assert (order.num_past_lower_score, order.num_admitted, order._waiting) == (0, 1, [])
    assert isnan(past_lower_score_fraction([]))
