"""The compiled loop against the engine that walks every request. Slow: numba compiles first."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lengthwise.errors import SchedulingError
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.prefill_first import Orca, PrefillFirst
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.simulator.compiled.run import run_compiled
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.latency.time_tables import TableLatency
from scheduler_adapters.workload.requests import Requests, make_requests
from tests.scheduler_adapters.planner.test_planner import OneDecode
from tests.scheduler_adapters.simulator.any_policy import assert_equal, serve, workloads
from tests.scheduler_adapters.simulator.reference import ReferenceEngine

pytestmark = pytest.mark.slow


LATENCY = AffineLatency(
    base_s=0.013, per_token_s=1.7e-4, per_context_token_s=1.1e-7, per_attention_pair_s=1e-8
)

ROOFLINE = AffineLatency(
    base_s=0.003,
    weights_s=0.006,
    per_token_s=2.7e-5,
    per_context_token_s=5e-8,
    per_attention_pair_s=1.8e-9,
)

TABLES = TableLatency(
    np.random.default_rng(0).uniform(1.0, 2.0, 700),
    np.random.default_rng(1).uniform(0.1, 0.2, 700),
    np.random.default_rng(2).uniform(0.1, 0.2, (130, 64)),
    np.random.default_rng(3).uniform(0.1, 0.2, (400, 700)),
)
"""No number in it is round."""


def with_targets(requests: Requests) -> Requests:
    """Requests of the classes' and other targets, whose scores are in time."""
    tbt_s = np.random.default_rng(len(requests)).choice([0.03, 0.1, 0.5, np.nan], len(requests))
    return replace(requests, tbt_s=tbt_s, score_delay_s=np.zeros(len(requests)))


instances = st.builds(
    Instance,
    latency=st.sampled_from([LATENCY, ROOFLINE, TABLES]),
    kv_blocks=st.sampled_from([8, 14, 20, 40, 400]),
    max_num_seqs=st.sampled_from([1, 3, 8]),
    max_tokens=st.sampled_from([None, 4, 32, 200]),
    watermark_fraction=st.sampled_from([0.0, 0.05]),
    decode_headroom_blocks=st.integers(0, 1),
)


static_policies = st.one_of(
    st.builds(FCFS),
    st.builds(OneDecode),
    st.builds(pars, starve_after_s=st.sampled_from([None, 0.2, 1.0])),
    st.builds(pars, times=st.floats(0, 3), at_least=st.integers(0, 9)),
    st.builds(Sarathi, order=st.sampled_from(["fcfs", "spf"]), max_tokens=st.integers(8, 200)),
    st.builds(PrefillFirst, max_tokens=st.integers(8, 300), padded=st.booleans()),
    st.builds(Orca, max_batch=st.integers(1, 9), reserved_blocks=st.sampled_from([None, 3, 50])),
)

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

quanta_policies = st.one_of(
    st.builds(RoundRobin, quantum_tokens=st.sampled_from([1, 3, 20, 500])),
    st.builds(
        Pascal,
        quantum_tokens=st.sampled_from([1, 3, 20, 500]),
        demote_above_tokens=st.sampled_from([10, 60, 5000]),
        max_decodes=st.sampled_from([None, 1, 3]),
    ),
)


@settings(max_examples=700, deadline=None)
@given(workloads().map(with_targets), static_policies | slai_policies | quanta_policies, instances)
def test_the_compiled_loop_gives_the_timeline_of_the_reference(requests, policy, instance):
    compiled = run_compiled(requests, policy, instance)
    reference = ReferenceEngine(policy, instance)
    if compiled is not None:
        assert_equal(compiled, reference.run(requests))
    elif isinstance(policy, RoundRobin | Pascal):
        with pytest.raises(SchedulingError):
            reference.run(requests)


@pytest.mark.parametrize(
    "policy",
    [
        *(FCFS(), pars(), Sarathi(order="spf"), PrefillFirst(), Orca(), pars(guard="none")),
        *(SLAI(order="fcfs", offset=10), SLAI(offset=10), SLAI(offset=5), SLAI()),
        SLAI(paying_first=True),
        RoundRobin(quantum_tokens=9),
        Pascal(quantum_tokens=9, demote_above_tokens=50, max_decodes=9),
    ],
    ids=lambda policy: policy.name,
)
def test_the_compiled_loop_takes_these_policies(policy):
    is_paying = np.arange(50) % 2 == 0
    requests = make_requests(
        prompt_tokens=np.arange(60, 10, -1),
        output_tokens=np.arange(1, 51),
        reasoning_tokens=np.arange(50) // 2,
        scores=np.arange(50),
        user_class=np.where(is_paying, "paying", "free"),
        tbt_s=np.where(is_paying, 0.1, 0.5),
    )
    for latency in (LATENCY, ROOFLINE, TABLES):
        instance = Instance(latency=latency, kv_blocks=30, max_num_seqs=16, max_tokens=512)
        compiled = run_compiled(requests, policy, instance)
        assert compiled is not None
        assert compiled.preemptions.sum() > 0
        if isinstance(policy, SLAI):
            assert len(compiled.runs) > 60, "some decodes are deferred"
        assert_equal(compiled, serve(Engine(policy, instance), requests))
