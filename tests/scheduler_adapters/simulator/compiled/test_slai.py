"""The compiled loop of SLAI against the engine that walks every request. Slow: numba compiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_adapters.policies.class_priority import ClassPriority
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policies.starvation_guard import StarvationGuard
from scheduler_adapters.simulator.compiled.slai import run_compiled_slai
from scheduler_adapters.simulator.engine.engine import Engine
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


slai_policies = st.builds(
    SLAI,
    order=st.sampled_from(["spf", "fcfs"]),
    offset=st.sampled_from([None, 0.0, 1.0, 5, 10]),
    memory_limit=st.sampled_from([0.0, 0.5, 0.96]),
    paying_first=st.booleans(),
    max_tokens=st.sampled_from([1, 8, 64, 512]),
    max_resident=st.sampled_from([2, 128]),
    max_decodes=st.sampled_from([1, 3, 128]),
)


@settings(max_examples=200, deadline=None)
@given(workloads(), slai_policies, instances)
def test_so_does_the_loop_for_slai(requests, policy, instance):
    compiled = run_compiled_slai(requests, policy, instance)
    if compiled is not None:
        assert_equal(compiled, ReferenceEngine(policy, instance).run(requests))


@pytest.mark.parametrize(
    "settings",
    [
        {"order": "fcfs", "offset": 10},
        {"offset": 10},
        {"offset": 5},
        {},
        {"paying_first": True},
    ],
    ids=str,
)
def test_the_compiled_loop_takes_every_variant_of_slai(settings):
    is_paying = np.arange(50) % 2 == 0
    requests = make_requests(
        prompt_tokens=np.arange(60, 10, -1),
        output_tokens=np.arange(1, 51),
        user_class=np.where(is_paying, "paying", "free"),
        tbt_s=np.where(is_paying, 0.1, 0.5),
    )
    for latency in (LATENCY, ROOFLINE, KERNELS):
        instance = Instance(latency=latency, kv_blocks=30, max_num_seqs=16)
        compiled = run_compiled_slai(requests, SLAI(**settings), instance)
        assert compiled is not None
        assert compiled.preemptions.sum() > 0
        assert len(compiled.runs) > 60, "somebody's decode was put off"
        assert_equal(compiled, serve(Engine(SLAI(**settings), instance), requests))


class Hurried(SLAI):
    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return super().rank(request, load)._replace(lane=0)


def test_only_slai_itself_takes_its_compiled_loop():
    requests = make_requests(prompt_tokens=[5] * 3, output_tokens=[3] * 3)
    instance = Instance(latency=LATENCY, kv_blocks=60)
    ruled = SLAI()
    ruled.rule = replace(ruled.rule, mixed=False)
    for policy in (Hurried(), StarvationGuard(SLAI()), ClassPriority(SLAI()), ruled, FCFS()):
        assert run_compiled_slai(requests, policy, instance) is None
    assert run_compiled_slai(requests, SLAI(), replace(instance, latency=NotCompiled())) is None
    assert run_compiled_slai(requests, SLAI(offset=np.inf), instance) is None
    ruled.rule = replace(SLAI().rule, max_decodes=0)
    assert run_compiled_slai(requests, ruled, instance) is None, "an empty step"
