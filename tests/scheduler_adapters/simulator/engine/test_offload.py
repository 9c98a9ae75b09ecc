"""Stored blocks by hand: on the host as long as there is room, and back without being computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scheduler_adapters.policies.fcfs import OffloadingFCFS
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.request_state import SimulatedRequest
from scheduler_adapters.simulator.host_link import HostLink
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.simulator.any_policy import state_of

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
    engine = Engine(OffloadingFCFS(), replace(INSTANCE, host=host))
    engine.submit_all(make_requests(prompt_tokens=[16, 16], output_tokens=[20, 20]))
    engine.advance(seconds)
    return engine


def test_what_is_evicted_is_on_the_host_and_waits():
    engine = engine_at(19.0)
    live = engine.state.lives[1]
    assert live.is_waiting
    assert live.stored_blocks == engine.stored.used_host_blocks == 2
    assert (engine.state.num_waiting, engine.state.num_returning) == (1, 0)


def test_a_host_without_room_lets_blocks_be_computed_anew():
    engine = engine_at(19.0, replace(HOST, max_blocks=1))
    assert engine.state.lives[1].stored_blocks == engine.stored.used_host_blocks == 0
    engine.advance(np.inf)
    assert engine.state.record.preemptions == [0, 1]


def test_a_withdrawn_request_gives_its_place_on_the_host_back():
    engine = engine_at(19.0)
    carried = engine.withdraw(state_of(engine, "1"))
    assert carried.kv_tokens == 16 + 17 - 1
    assert engine.stored.used_host_blocks == 0
    engine.advance(np.inf)  # its copy lands, and nobody is there
    assert engine.state.load.used_blocks == engine.state.num_waiting == 0


def test_brought_blocks_take_no_place_on_the_host_and_run_at_the_next_step():
    engine = engine_at(19.0)
    carried = engine.withdraw(state_of(engine, "1"))
    other = Engine(OffloadingFCFS(), INSTANCE)
    other.submit(SimulatedRequest("1", 0.0, 16, 20), carried=carried)
    other.advance(carried.available_s + 1e-9)
    assert other.stored.used_host_blocks == 0
    assert other.state.load.now_s == carried.available_s + 1.01
    assert not other.state.lives[0].is_brought


def test_an_arrival_while_all_others_are_copied_is_seen_by_an_engine_that_plans_ahead():
    slow = replace(INSTANCE, host=replace(HOST, bytes_per_s=0.32))  # 50 s for a block
    engine = Engine(OffloadingFCFS(), slow, vllm=True)
    arrival_s = [0.0, 0.0, 30.0]
    engine.submit_all(
        make_requests(prompt_tokens=[16] * 3, output_tokens=[20, 20, 2], arrival_s=arrival_s)
    )
    engine.advance(30.0)
    assert engine.is_stalled
    assert engine.state.num_waiting == 1
    engine.advance(30.5)
    assert engine.state.num_waiting == 2
    engine.advance(np.inf)
    assert engine.state.record.finished_s[2] > 100  # once the one before it is back
    assert engine.state.record.preemptions == [0, 1, 0]
