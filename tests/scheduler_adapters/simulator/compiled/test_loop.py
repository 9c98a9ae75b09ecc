"""The compiled loops against the engine that walks every request. Slow: numba compiles first."""

from __future__ import annotations

import hashlib
import os
import signal
from dataclasses import replace
from functools import partial
from threading import active_count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_adapters.policies.fcfs import FCFS, OffloadingFCFS
from scheduler_adapters.policies.prefill_first import Orca, PrefillFirst
from scheduler_adapters.policies.rad import RAD
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.compiled import loop as compiled
from scheduler_adapters.simulator.compiled.loop import run_compiled
from scheduler_adapters.simulator.compiled.quanta import run_compiled_quanta
from scheduler_adapters.simulator.compiled.slai import run_compiled_slai
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.host_link import HostLink
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.kernels.grid import Grid2
from scheduler_adapters.simulator.latency.kernels.kernel_latency import KernelLatency
from scheduler_adapters.simulator.latency.models import AffineLatency, LatencyModel, RooflineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.arrivals import poisson_arrivals_s
from scheduler_adapters.workload.requests import Requests, make_requests
from tests.scheduler_adapters.simulator.any_policy import serve
from tests.scheduler_adapters.simulator.reference import ReferenceEngine

pytestmark = pytest.mark.slow


LATENCY = AffineLatency(
    base_s=0.013, per_token_s=1.7e-4, per_context_token_s=1.1e-7, per_attention_pair_s=1e-8
)

ROOFLINE = RooflineLatency(
    overhead_s=0.003,
    weights_s=0.006,
    per_token_s=2.7e-5,
    per_context_token_s=5e-8,
    per_attention_pair_s=1.8e-9,
)

KERNELS = KernelLatency(
    tokens_s=np.linspace(0.01, 0.06, 600).tolist(),
    sequences_s=np.linspace(0.001, 0.0017, 300).tolist(),
    prefill_s=Grid2([1, 7, 64], [0, 33, 150], np.random.default_rng(0).uniform(1e-3, 2e-3, (3, 3))),
    decode_s=Grid2([1, 4, 100], [16, 50, 77], np.random.default_rng(1).uniform(1e-3, 9e-3, (3, 3))),
)
"""Nothing in it is round; workloads lie inside, between and beyond its axes."""


@st.composite
def workloads(draw) -> Requests:
    count = draw(st.integers(1, 30))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    longest = draw(st.sampled_from([2, 20, 90]))
    output_tokens = random.integers(1, longest + 1, count)
    scores = random.integers(0, 9, count).astype(float)
    scores[random.random(count) < 0.1] = np.nan
    gap_s = draw(st.sampled_from([0.0, 0.02, 0.3]))
    return make_requests(
        prompt_tokens=random.integers(1, 100, count),
        output_tokens=output_tokens,
        reasoning_tokens=random.integers(0, output_tokens + 1),
        arrival_s=np.cumsum(random.exponential(gap_s, count)) if gap_s else np.zeros(count),
        scores=scores,
        user_class=random.choice(["paying", "free"], count),
        tbt_s=random.choice([0.03, 0.1, 0.5, np.nan], count),
    )


instances = st.builds(
    Instance,
    latency=st.sampled_from([LATENCY, ROOFLINE, KERNELS]),
    kv_blocks=st.sampled_from([8, 14, 20, 40, 400]),
    max_num_seqs=st.sampled_from([1, 3, 8]),
    max_tokens=st.sampled_from([None, 32, 200]),
    watermark_fraction=st.sampled_from([0.0, 0.05]),
    decode_headroom_blocks=st.integers(0, 1),
)


def assert_equal(one: Timeline, other: Timeline) -> None:
    for name in (
        "tick_s",
        "runs",
        "scheduled_s",
        "first_token_s",
        "first_answer_s",
        "finished_s",
        "preemptions",
        "rejected",
    ):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def static_policies() -> st.SearchStrategy[Policy]:
    return st.one_of(
        st.builds(FCFS),
        st.builds(pars, starve_after_s=st.sampled_from([None, 0.2, 1.0])),
        st.builds(Sarathi, order=st.sampled_from(["fcfs", "spf"]), max_tokens=st.integers(8, 200)),
        st.builds(PrefillFirst, max_tokens=st.integers(8, 300), padded=st.booleans()),
        st.builds(
            Orca, max_batch=st.integers(1, 9), reserved_blocks=st.sampled_from([None, 3, 50])
        ),
    )


@settings(max_examples=200, deadline=None)
@given(workloads(), static_policies(), instances)
def test_the_compiled_loop_does_what_walking_does(requests, policy, instance):
    compiled = run_compiled(requests, policy, instance)
    if compiled is not None:
        assert_equal(compiled, ReferenceEngine(policy, instance).run(requests))


def test_large_runs_take_the_compiled_loop_and_give_the_same_bytes():
    requests = make_requests(
        prompt_tokens=np.full(20_000, 30),
        output_tokens=np.arange(20_000) % 40 + 1,
        arrival_s=poisson_arrivals_s(20_000, rate_per_s=20, seed=0),
    )
    instance = Instance(latency=LATENCY, kv_blocks=200, max_num_seqs=32)
    assert_equal(
        simulate(requests, FCFS(), instance), simulate(requests, FCFS(), instance, loop="python")
    )


@pytest.mark.parametrize("policy", [FCFS(), pars(), Sarathi(order="spf"), PrefillFirst(), Orca()])
def test_the_compiled_loop_takes_the_static_policies(policy):
    requests = make_requests(
        prompt_tokens=[40] * 50, output_tokens=np.arange(1, 51), scores=np.arange(50)
    )
    for latency in (LATENCY, ROOFLINE, KERNELS):
        instance = Instance(latency=latency, kv_blocks=30, max_num_seqs=16, max_tokens=512)
        compiled = run_compiled(requests, policy, instance)
        assert compiled is not None
        assert compiled.preemptions.sum() > 0
        assert_equal(compiled, serve(Engine(policy, instance), requests))


def test_policies_and_models_that_the_compiled_loop_cannot_do_are_left_to_python():
    requests = make_requests(prompt_tokens=[5] * 3, output_tokens=[3] * 3)
    instance = Instance(latency=LATENCY, kv_blocks=60, max_num_seqs=16, max_tokens=512)
    assert run_compiled(requests, RoundRobin(), instance) is None
    host = HostLink(kv_bytes_per_token=1)
    assert run_compiled(requests, OffloadingFCFS(), replace(instance, host=host)) is None
    assert run_compiled(requests, FCFS(), replace(instance, max_tokens=8)) is None
    assert run_compiled(requests, FCFS(), replace(instance, latency=NotCompiled())) is None
    short = replace(KERNELS, tokens_s=KERNELS.tokens_s[:4])
    assert run_compiled(requests, FCFS(), replace(instance, latency=short)) is None
    timeline = simulate(requests, RAD(), instance, loop="compiled")
    assert np.isfinite(timeline.finished_s).all()


@pytest.mark.parametrize(
    ("run", "policy"),
    [
        (run_compiled, FCFS()),
        (run_compiled_slai, SLAI()),
        (run_compiled_quanta, RoundRobin()),
    ],
)
def test_the_compiled_loops_take_requests_that_are_all_rejected(run, policy):
    requests = make_requests(prompt_tokens=[5000] * 3, output_tokens=[3] * 3)
    instance = Instance(latency=LATENCY, kv_blocks=60, max_num_seqs=16)
    compiled = run(requests, policy, instance)
    assert compiled is not None
    assert_equal(compiled, serve(Engine(policy, instance), requests))


@pytest.mark.parametrize("policy", [FCFS(), SLAI(), RoundRobin()])
def test_an_instance_that_gets_no_request_has_an_empty_timeline(policy):
    nobody = make_requests(prompt_tokens=[5], output_tokens=[3]).take(np.array([False]))
    instance = Instance(latency=LATENCY, kv_blocks=60)
    assert len(simulate(nobody, policy, instance, loop="compiled").tick_s) == 0


class NotCompiled(LatencyModel):
    def step_s(self, num_decodes, decode_context, prefills):
        return 0.01


def test_ctrl_c_is_answered_while_compiled_code_runs(monkeypatch):
    # Lets go of the interpreter as the compiled loop does, and hears no signal either.
    deaf = partial(hashlib.pbkdf2_hmac, "sha256", b"", b"", 4_000_000)

    def run(*_):
        os.kill(os.getpid(), signal.SIGINT)  # not before the code runs
        return deaf()

    monkeypatch.setattr(compiled, "_run", run)
    num_threads = active_count()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_compiled(
                make_requests(prompt_tokens=[1], output_tokens=[1]),
                FCFS(),
                Instance(latency=LATENCY, kv_blocks=20),
            )
        assert active_count() > num_threads, "it is still running"
    finally:
        signal.signal(signal.SIGINT, before)
