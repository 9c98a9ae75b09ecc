"""Requests that move between instances: nothing is lost, and nothing is computed twice for it."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.engine.arrivals import request_state, request_states
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.request_state import GONE, RequestState
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.workload.requests import Requests, make_requests
from tests.scheduler_adapters.simulator.any_policy import (
    OFFLOADING,
    SMALL,
    hosts,
    instances,
    request_of,
    workloads,
)

MAKERS = {
    **{
        name: lambda name=name: load_policy(name)
        for name in ("fcfs", "pars", "sarathi", "vllm-prefill-first", "slai", "rad", "pascal")
    },
    **SMALL,
    **OFFLOADING,
}


class Two:
    """Two equal instances, and which of them each request is in."""

    def __init__(self, name: str, requests: Requests, instance: Instance, *, vllm: bool) -> None:
        self.requests = requests
        self.engines = [Engine(MAKERS[name](), instance, vllm=vllm) for _ in range(2)]
        self.place: dict[str, int] = {}
        self.states: dict[str, RequestState] = {}
        self.token_s: dict[str, tuple[float, ...]] = {}

    def submit(self, request: RequestState) -> None:
        if self.engines[0].submit(request):
            self.place[request.view.request_id] = 0
            self.states[request.view.request_id] = request

    def move(self, request_id: str, *, keeps_kv: bool) -> bool:
        """Move a request to the other instance; False if it has finished."""
        here = self.place[request_id]
        if self.states[request_id].is_gone:
            return False
        carried = self.states[request_id]
        self.engines[here].withdraw(carried)
        assert len(carried.other_token_s) == carried.generated_tokens
        before = self.token_s.get(request_id, ())
        assert carried.other_token_s[: len(before)] == before
        self.token_s[request_id] = carried.other_token_s
        if not keeps_kv:
            carried.kv_tokens = 0
        again = request_state(self.requests, int(request_id))
        assert self.engines[1 - here].submit(again, carried=carried)
        self.place[request_id], self.states[request_id] = 1 - here, again
        return True

    def tokens(self, request_id: str) -> list[float]:
        """Times of the tokens of a finished request, in all instances."""
        return self.engines[self.place[request_id]].token_s(self.states[request_id])

    def assert_empty(self) -> None:
        for engine in self.engines:
            memory, ranked = engine.memory, engine.ranked
            assert not memory.residents
            assert not engine.arrivals.pending
            assert engine.load.used_blocks == memory.stored.used_host_blocks == 0
            assert ranked.num_waiting == ranked.waiting_tokens == 0
            assert memory.num_prefilling == memory.num_returning == memory.held_blocks == 0


moves = st.lists(
    st.tuples(st.sampled_from([1e-3, 0.014, 0.05, 0.3]), st.integers(0, 29), st.booleans()),
    min_size=1,
    max_size=40,
)
"""(seconds until then, which request, whether with its KV)."""


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=40, deadline=None)
@given(requests=workloads(), instance=instances, host=hosts, moves=moves, vllm=st.booleans())
def test_moving_loses_no_token_and_no_block(name, requests, instance, host, moves, vllm):
    is_hosted = name.endswith("offload")
    hosted = replace(instance, host=host) if is_hosted else instance
    two = Two(name, requests, hosted, vllm=vllm)
    for request in request_states(requests):
        two.submit(request)
    until_s = 0.0
    for seconds, which, keeps_kv in moves:
        until_s += seconds
        for engine in two.engines:
            engine.advance(until_s)
        if two.place:
            two.move(sorted(two.place)[which % len(two.place)], keeps_kv=keeps_kv)
    for engine in two.engines:
        assert engine.advance(inf) == inf
    two.assert_empty()
    for request_id, request in two.states.items():
        times_s = two.tokens(request_id)
        assert len(times_s) == request.output_tokens
        assert (np.diff(times_s) > 0).all()


SECONDS = Instance(
    latency=AffineLatency(base_s=1.0, per_token_s=0.01), kv_blocks=20, watermark_fraction=0.0
)
SIZES = {"prompt_tokens": 40, "output_tokens": 10, "reasoning_tokens": 4}


@pytest.mark.parametrize(("keeps_kv", "first_step_s"), [(True, 1.01), (False, 1.44)])
def test_kv_that_is_kept_is_not_computed_anew(keeps_kv, first_step_s):
    engine, carried, live = Engine(FCFS(), SECONDS), request_of(**SIZES), request_of(**SIZES)
    assert engine.submit(carried)
    engine.advance(4.0)
    engine.withdraw(carried)
    carried.kv_tokens *= keeps_kv
    other = Engine(FCFS(), SECONDS)
    other.submit(live, carried=carried)
    start_s = carried.other_token_s[-1]
    assert other.advance(0.0) == start_s  # when its last step there ended
    assert other.advance(start_s + 1e-9) == pytest.approx(start_s + first_step_s)
    other.advance(inf)
    assert len(other.token_s(live)) == 10
    assert other.requests == [GONE]
    assert other.record.first_token_s[0] == carried.other_token_s[0]


def test_a_prefill_takes_along_what_is_computed():
    carried, again = request_of(prompt_tokens=100), request_of(prompt_tokens=100)
    engine = Engine(FCFS(), replace(SECONDS, max_tokens=32))
    engine.submit(carried)
    engine.advance(2.0)  # two chunks
    engine.withdraw(carried)
    assert (carried.kv_tokens, carried.other_token_s) == (64, ())
    other, carried.joins_s = Engine(FCFS(), SECONDS), 0.0
    other.submit(again, carried=carried)
    assert other.advance(1e-9) == pytest.approx(1.36)  # the 36 tokens that were left


def test_who_waits_takes_nothing_but_its_history():
    one_seat = Engine(FCFS(), replace(SECONDS, max_num_seqs=1))
    first, second, third = (request_of(arrival_s=at_s) for at_s in (0.0, 0.0, 50.0))
    for request in (first, second, third):
        one_seat.submit(request)
    one_seat.advance(2.0)
    for request in (second, third):
        one_seat.withdraw(request)
        assert request.joins_s == one_seat.load.now_s
        assert np.isnan(request.scheduled_s)
        progress = request.kv_tokens, request.other_token_s, request.held_blocks
        assert progress == (0, (), 0)
    assert one_seat.advance(inf) == inf
    assert one_seat.load.step == 10


def test_a_request_that_can_never_fit_is_rejected_at_once():
    engine = Engine(FCFS(), SECONDS)
    assert not engine.submit(request_of(prompt_tokens=1000))
    engine.submit_all(make_requests(prompt_tokens=[1000, 1], output_tokens=[1, 1]))
    assert [live.is_gone for live in engine.requests] == [True, True, False]
    assert engine.advance(inf) == inf
