"""The candidates: what they equal, and whom they send away."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduler_adapters.checks import check_policy
from scheduler_adapters.commands.candidates import Informed, LeastWork, ShortestQuantile
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import ShortestPredicted
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.views import LoadView, RequestView
from scheduler_adapters.workload.requests import Requests, make_requests

ONE_SEAT = Instance(
    latency=AffineLatency(base_s=0.01, per_token_s=1e-4), kv_blocks=500, max_num_seqs=1
)


def quantiles(*limits: float) -> list[tuple[tuple[float, float], ...]]:
    return [((0.5, limit / 2), (0.9, limit)) for limit in limits]


def burst(*output_tokens: int) -> Requests:
    count = len(output_tokens)
    return make_requests(prompt_tokens=np.full(count, 8), output_tokens=output_tokens)


def test_it_serves_by_score_as_long_as_nobody_outlives_its_limit():
    random = np.random.default_rng(0)
    output = random.integers(1, 60, 30)
    scores = output + random.normal(0, 10, 30)
    requests = make_requests(prompt_tokens=np.full(30, 8), output_tokens=output, scores=scores)
    known = [((0.5, score + 100), (0.9, 1000.0)) for score in scores]
    ours = simulate(requests, Informed(ShortestQuantile(), known), ONE_SEAT)
    by_score = simulate(requests, ShortestPredicted(), ONE_SEAT)
    np.testing.assert_array_equal(ours.finished_s, by_score.finished_s)


def test_who_outlives_its_limit_makes_room_once_for_somebody_shorter():
    requests = burst(200, 30)
    timeline = simulate(requests, Informed(ShortestQuantile(), quantiles(20, 40)), ONE_SEAT)
    assert timeline.preemptions.tolist() == [1, 0]
    assert timeline.finished_s[1] < timeline.finished_s[0]


def test_it_stays_when_only_longer_ones_wait():
    requests = burst(200, 3000)
    timeline = simulate(requests, Informed(ShortestQuantile(), quantiles(20, 6000)), ONE_SEAT)
    assert timeline.preemptions.tolist() == [0, 0]


def test_requests_without_quantiles_are_served_as_fcfs():
    requests = burst(50, 3, 20)
    ours = simulate(requests, ShortestQuantile(), ONE_SEAT)
    np.testing.assert_array_equal(ours.finished_s, simulate(requests, FCFS(), ONE_SEAT).finished_s)


def test_without_displacement_it_stays_and_goes_first_when_blocks_run_out():
    requests = burst(200, 30, 150)
    known = quantiles(20, 40, 2000)
    policy = Informed(ShortestQuantile(displaces=False), known)
    roomy = replace(ONE_SEAT, max_num_seqs=3)
    assert simulate(requests, policy, roomy).preemptions.sum() == 0
    scarce = replace(roomy, kv_blocks=14, watermark_fraction=0.0)
    assert simulate(requests, policy, scarce).preemptions.tolist() == [1, 0, 0]


def test_least_work_adds_the_median_of_the_answer_to_the_prompt():
    view = RequestView("r", 0, 0.0, 100, quantiles=((0.5, 40.0), (0.9, 300.0)))
    assert LeastWork().rank(view, LoadView()).key == (140.0,)
    assert SLAI().rank(view, LoadView()).key == (100.0,)


def always_known(policy: Policy) -> Policy:
    return Informed(policy, quantiles(*[20.0] * 60))


@pytest.mark.parametrize(
    "make_policy",
    [
        lambda: always_known(ShortestQuantile()),
        lambda: always_known(ShortestQuantile(displaces=False)),
        lambda: always_known(LeastWork()),
    ],
)
def test_every_candidate_keeps_every_law(make_policy):
    assert check_policy(make_policy)
