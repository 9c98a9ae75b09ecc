"""The compiled loop of round-robin and PASCAL against the engine that walks every request. Slow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.errors import SchedulingError
from scheduler_adapters.policies.class_priority import ClassPriority
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.simulator.compiled.quanta import run_compiled_quanta
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.host_link import HostLink
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.views import LoadView, Rank, RequestView
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.simulator.any_policy import serve
from tests.scheduler_adapters.simulator.compiled.test_loop import (
    KERNELS,
    LATENCY,
    ROOFLINE,
    NotCompiled,
    assert_equal,
    instances,
    workloads,
)
from tests.scheduler_adapters.simulator.reference import ReferenceEngine

pytestmark = pytest.mark.slow


policies = st.one_of(
    st.builds(RoundRobin, quantum_tokens=st.sampled_from([1, 3, 20, 500])),
    st.builds(
        Pascal,
        quantum_tokens=st.sampled_from([1, 3, 20, 500]),
        demote_above_tokens=st.sampled_from([10, 60, 5000]),
        max_decodes=st.sampled_from([None, 1, 3]),
    ),
)


@settings(max_examples=300, deadline=None)
@given(workloads(), policies, instances)
def test_so_does_the_loop_for_quanta(requests, policy, instance):
    compiled = run_compiled_quanta(requests, policy, instance)
    walking = ReferenceEngine(policy, instance)
    if compiled is None:
        with pytest.raises(SchedulingError):
            walking.run(requests)
    else:
        assert_equal(compiled, walking.run(requests))


@pytest.mark.parametrize(
    "policy",
    [RoundRobin(quantum_tokens=9), Pascal(quantum_tokens=9, demote_above_tokens=50, max_decodes=9)],
    ids=lambda policy: policy.name,
)
def test_the_compiled_loop_takes_both_policies(policy):
    requests = make_requests(
        prompt_tokens=np.arange(60, 10, -1),
        output_tokens=np.arange(1, 51),
        reasoning_tokens=np.arange(50) // 2,
    )
    for latency in (LATENCY, ROOFLINE, KERNELS):
        instance = Instance(latency=latency, kv_blocks=30, max_num_seqs=16)
        compiled = run_compiled_quanta(requests, policy, instance)
        assert compiled is not None
        assert compiled.preemptions.sum() > 0
        assert_equal(compiled, serve(Engine(policy, instance), requests))


class Hurried(Pascal):
    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return super().rank(request, load)._replace(lane=0)


def test_what_else_has_quanta_is_left_to_python():
    requests = make_requests(prompt_tokens=[5] * 3, output_tokens=[3] * 3)
    instance = Instance(latency=LATENCY, kv_blocks=60, host=HostLink(kv_bytes_per_token=1))
    others = [ClassPriority(Pascal()), Hurried(), Sarathi()]
    for policy in [*others, Pascal(offload=True), RoundRobin(offload=True)]:
        assert run_compiled_quanta(requests, policy, instance) is None
    assert run_compiled_quanta(requests, Pascal(), replace(instance, latency=NotCompiled())) is None
    assert run_compiled_quanta(requests, Pascal(), instance) is not None
