"""Which runs the compiled loop takes, and Ctrl-C beside it. Slow: numba compiles first."""

import hashlib
import os
import signal
from dataclasses import replace
from functools import partial
from threading import active_count

import numpy as np
import pytest

from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.rad import RAD
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.simulator.compiled import run as compiled
from scheduler_adapters.simulator.compiled.run import run_compiled
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.simulator.latency.time_tables import TableLatency
from scheduler_adapters.simulator.links import HostLink
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.simulator.any_policy import serve
from tests.scheduler_adapters.simulator.compiled.test_loop import LATENCY, assert_equal

pytestmark = pytest.mark.slow
INSTANCE = Instance(latency=LATENCY, kv_blocks=60, max_num_seqs=16, max_tokens=512)


class NotCompiled(LatencyModel):
    def step_s(self, num_decodes, decode_context, prefills):
        return 0.01


def test_what_the_compiled_loop_cannot_do_is_left_to_python():
    requests = make_requests(prompt_tokens=[5] * 3, output_tokens=[3] * 3)
    host = HostLink(kv_bytes_per_token=1)
    assert run_compiled(requests, FCFS(offload=True), replace(INSTANCE, host=host)) is None
    assert run_compiled(requests, FCFS(), replace(INSTANCE, latency=NotCompiled())) is None
    short = TableLatency(*(np.ones(size) for size in (4, 4, (4, 4), (4, 4))))
    assert run_compiled(requests, FCFS(), replace(INSTANCE, latency=short)) is None
    assert np.isfinite(simulate(requests, RAD(), INSTANCE, loop="compiled").finished_s).all()


@pytest.mark.parametrize("policy", [FCFS(), SLAI(), RoundRobin()])
def test_the_compiled_loop_takes_requests_that_are_all_rejected(policy):
    requests = make_requests(prompt_tokens=[5000] * 3, output_tokens=[3] * 3)
    compiled = run_compiled(requests, policy, INSTANCE)
    assert compiled is not None
    assert_equal(compiled, serve(Engine(policy, INSTANCE), requests))


@pytest.mark.parametrize("policy", [FCFS(), SLAI(), RoundRobin()])
def test_an_instance_that_gets_no_request_has_an_empty_timeline(policy):
    none = make_requests(prompt_tokens=[5], output_tokens=[3]).take(np.array([False]))
    assert len(simulate(none, policy, INSTANCE, loop="compiled").tick_s) == 0


def test_ctrl_c_is_answered_while_compiled_code_runs(monkeypatch):
    # Releases the interpreter as the compiled loop does, and handles no signal either.
    deaf = partial(hashlib.pbkdf2_hmac, "sha256", b"", b"", 4_000_000)

    def run(*_):
        os.kill(os.getpid(), signal.SIGINT)  # not before the code runs
        return deaf()

    monkeypatch.setattr(compiled, "run", run)
    num_threads = active_count()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_compiled(make_requests(prompt_tokens=[1], output_tokens=[1]), FCFS(), INSTANCE)
        assert active_count() > num_threads, "it is still running"
    finally:
        signal.signal(signal.SIGINT, before)
