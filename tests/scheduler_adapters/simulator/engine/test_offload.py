"""Stored blocks by hand: on the host as long as there is room, and back without being computed."""

from dataclasses import replace

import numpy as np

from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.links import HostLink
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.simulator.any_policy import request_of, state_of

HOST = HostLink(kv_bytes_per_token=1, bytes_per_s=32.0)
"""Half a second for a block."""
INSTANCE = Instance(
    latency=AffineLatency(base_s=1.0, per_token_s=0.01),
    kv_blocks=4,
    watermark_fraction=0.0,
    max_tokens=64,
    host=HOST,
)


def engine_at(seconds: float, host: HostLink = HOST) -> Engine:
    """Two requests of 16 + 20 tokens: at 17 tokens the second has to go."""
    engine = Engine(FCFS(offload=True), replace(INSTANCE, host=host))
    engine.submit_all(make_requests(prompt_tokens=[16, 16], output_tokens=[20, 20]))
    engine.advance(seconds)
    return engine


def test_brought_blocks_take_no_host_place_and_run_the_next_step():
    engine = engine_at(19.0)
    carried = state_of(engine, "1")
    engine.withdraw(carried)
    other = Engine(FCFS(offload=True), INSTANCE)
    other.submit(request_of("1", 0.0, 16, 20), carried=carried)
    other.advance(carried.joins_s + 1e-9)
    assert other.memory.stored.used_host_blocks == 0
    assert other.load.now_s == carried.joins_s + 1.01
    assert not other.requests[0].is_brought


def test_an_engine_that_plans_ahead_sees_arrivals_during_copying():
    slow = replace(INSTANCE, host=replace(HOST, bytes_per_s=0.32))  # 50 s for a block
    engine = Engine(FCFS(offload=True), slow, vllm=True)
    arrival_s = [0.0, 0.0, 30.0]
    engine.submit_all(
        make_requests(prompt_tokens=[16] * 3, output_tokens=[20, 20, 2], arrival_s=arrival_s)
    )
    engine.advance(30.0)
    assert engine.is_stalled
    assert engine.ranked.num_waiting == 1
    engine.advance(30.5)
    assert engine.ranked.num_waiting == 2
    engine.advance(np.inf)
    assert engine.record.finished_s[2] > 100  # once the one before it is back
    assert engine.record.preemptions == [0, 1, 0]


def test_an_offloaded_request_goes_on_where_it_was():
    """Two requests of 16 + 20 tokens, 4 blocks: at 17 tokens the second has to go."""
    requests = make_requests(prompt_tokens=[16, 16], output_tokens=[20, 20])
    instance = replace(INSTANCE, latency=AffineLatency(base_s=1.0))
    timeline = simulate(requests, FCFS(offload=True), instance)
    assert timeline.preemptions.tolist() == [0, 1]
    assert timeline.finished_s.tolist() == [20.0, 24.0]
    assert timeline.token_s(1).tolist() == [*range(1, 18), 22.0, 23.0, 24.0]
