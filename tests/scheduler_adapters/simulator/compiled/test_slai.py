"""The compiled part of SLAI, and what is left to plain Python."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler_adapters.policies.fair_shares import ClassPriority
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import StarvationGuard
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.simulator.compiled.run import run_compiled
from scheduler_adapters.simulator.compiled.slai import slai_policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.views import LoadView, Rank, RequestView
from scheduler_adapters.workload.requests import make_requests

REQUESTS = make_requests(
    prompt_tokens=[7, 5, 6],
    output_tokens=[3] * 3,
    user_class=["paying", "free", "free"],
    tbt_s=[0.1, np.nan, 0.3],
)


class Hurried(SLAI):
    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return super().rank(request, load)._replace(lane=0)


@pytest.mark.parametrize(
    ("policy", "key"),
    [(SLAI(order="fcfs"), [0, 1, 2]), (SLAI(), [2, 0, 1]), (SLAI(paying_first=True), [0, 1, 2])],
)
def test_keys_are_places_in_the_queue_of_all_requests(policy, key):
    part = slai_policy(REQUESTS, policy)
    assert part is not None
    assert part.columns["key"].tolist() == key
    assert part.columns["tbt_s"].tolist() == [0.1, 0.2, 0.3]


def test_subclasses_wrappers_and_other_rules_are_left_to_python():
    ruled = SLAI()
    ruled.rule = replace(ruled.rule, mixed=False)
    others = (Hurried(), StarvationGuard(SLAI()), ClassPriority(SLAI()), ruled, FCFS())
    for policy in (*others, SLAI(offset=np.inf)):
        assert slai_policy(REQUESTS, policy) is None


@pytest.mark.slow
def test_an_empty_step_is_left_to_python():
    ruled = SLAI()
    ruled.rule = replace(ruled.rule, max_decodes=0)
    instance = Instance(latency=AffineLatency(base_s=0.01), kv_blocks=60)
    assert run_compiled(REQUESTS, ruled, instance) is None
