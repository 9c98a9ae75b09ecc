"""Static ranks as columns, and the policies that have none."""

import numpy as np
import pytest

from scheduler_adapters.policies.fair_shares import ClassPriority
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.prefill_first import PrefillFirst
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.simulator.compiled.static_ranks import static_policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.workload.requests import make_requests

INSTANCE = Instance(latency=AffineLatency(base_s=0.01), kv_blocks=100)
REQUESTS = make_requests(
    prompt_tokens=[5, 3, 4],
    output_tokens=[1, 1, 1],
    arrival_s=[0.0, 1.0, 2.0],
    scores=[7.0, np.nan, 2.0],
    user_class=["free", "paying", "free"],
)


@pytest.mark.parametrize(
    ("policy", "key", "starves_s"),
    [
        (FCFS(), [-np.inf] * 3, [np.inf] * 3),
        (Sarathi(order="spf"), [5, 3, 4], [np.inf] * 3),
        (pars(starve_after_s=10.0), [7, 7, 2], [10, 11, 12]),
        (pars(starve_after_s=None), [7, 7, 2], [np.inf] * 3),
        (ClassPriority(FCFS()), None, None),  # residents of two classes are ranked differently
    ],
)
def test_the_ranks_of_a_static_policy_are_two_columns(policy, key, starves_s):
    part = static_policy(REQUESTS, policy, INSTANCE)
    if key is None:
        assert part is None
    else:
        assert part is not None
        assert part.columns["key"].tolist() == key
        assert part.columns["starves_s"].tolist() == starves_s


@pytest.mark.parametrize(("policy", "first"), [(FCFS(), False), (PrefillFirst(), True)])
def test_decodes_in_a_later_lane_than_prefills_are_noticed(policy, first):
    part = static_policy(REQUESTS, policy, INSTANCE)
    assert part is not None
    assert part.decode_lane == first


@pytest.mark.parametrize("policy", [SLAI(), RoundRobin(), FCFS(offload=True)])
def test_what_changes_its_ranks_or_moves_blocks_has_no_columns(policy):
    assert static_policy(REQUESTS, policy, INSTANCE) is None


def test_a_request_without_a_score_has_the_servables_median():
    requests = make_requests(
        prompt_tokens=[5, 9999, 5, 5], output_tokens=[1] * 4, scores=[np.nan, 1.0, 8.0, np.nan]
    )
    part = static_policy(requests, pars(starve_after_s=None), INSTANCE)
    assert part is not None
    assert part.columns["key"].tolist() == [-np.inf, 1, 8, 8]
