"""Requests that move between instances: nothing is lost, and nothing is computed twice for it."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.request_state import GONE, RequestState
from scheduler_adapters.simulator.engine.simulated_request import (
    Carried,
    SimulatedRequest,
    simulated_request,
)
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.simulator.any_policy import (
    OFFLOADING,
    SMALL,
    hosts,
    instances,
    state_of,
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

    def __init__(self, name: str, instance: Instance, *, vllm: bool) -> None:
        self.engines = [Engine(MAKERS[name](), instance, vllm=vllm) for _ in range(2)]
        self.place: dict[str, int] = {}
        self.requests: dict[str, SimulatedRequest] = {}
        self.states: dict[str, RequestState] = {}
        self.token_s: dict[str, tuple[float, ...]] = {}

    def submit(self, request: SimulatedRequest) -> None:
        if self.engines[0].submit(request):
            self.place[request.request_id] = 0
            self.states[request.request_id] = self.engines[0].requests[-1]
            self.requests[request.request_id] = request

    def move(self, request_id: str, *, keeps_kv: bool) -> bool:
        """Move a request to the other instance; False if it has finished."""
        here = self.place[request_id]
        if self.states[request_id].is_gone:
            return False
        carried = self.engines[here].withdraw(self.states[request_id])
        assert len(carried.token_s) == self.states[request_id].generated_tokens
        before = self.token_s.get(request_id, ())
        assert carried.token_s[: len(before)] == before
        self.token_s[request_id] = carried.token_s
        if not keeps_kv:
            carried = replace(carried, kv_tokens=0)
        assert self.engines[1 - here].submit(self.requests[request_id], carried=carried)
        self.place[request_id] = 1 - here
        self.states[request_id] = self.engines[1 - here].requests[-1]
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
    two = Two(name, replace(instance, host=host) if is_hosted else instance, vllm=vllm)
    for row in range(len(requests)):
        two.submit(simulated_request(requests, row))
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
    for request_id, request in two.requests.items():
        times_s = two.tokens(request_id)
        assert len(times_s) == request.output_tokens
        assert (np.diff(times_s) > 0).all()


SECONDS = Instance(
    latency=AffineLatency(base_s=1.0, per_token_s=0.01), kv_blocks=20, watermark_fraction=0.0
)
REQUEST = SimulatedRequest("moved", 0.0, prompt_tokens=40, output_tokens=10, reasoning_tokens=4)


def after(seconds: float, request: SimulatedRequest = REQUEST) -> tuple[Engine, Carried]:
    engine = Engine(FCFS(), SECONDS)
    assert engine.submit(request)
    engine.advance(seconds)
    return engine, engine.withdraw(state_of(engine, request.request_id))


@pytest.mark.parametrize(("keeps_kv", "first_step_s"), [(True, 1.01), (False, 1.44)])
def test_kv_that_is_kept_is_not_computed_anew(keeps_kv, first_step_s):
    _, carried = after(4.0)
    carried = carried if keeps_kv else replace(carried, kv_tokens=0)
    other = Engine(FCFS(), SECONDS)
    other.submit(REQUEST, carried=carried)
    (live,) = other.requests
    start_s = carried.token_s[-1]
    assert other.advance(0.0) == start_s  # when its last step there ended
    assert other.advance(start_s + 1e-9) == pytest.approx(start_s + first_step_s)
    other.advance(inf)
    assert len(other.token_s(live)) == 10
    assert other.requests == [GONE]
    assert other.record.first_token_s[0] == carried.token_s[0]


def test_a_prefill_takes_along_what_is_computed():
    requests = REQUEST._replace(prompt_tokens=100)
    engine = Engine(FCFS(), replace(SECONDS, max_tokens=32))
    engine.submit(requests)
    engine.advance(2.0)  # two chunks
    carried = engine.withdraw(state_of(engine, "moved"))
    assert (carried.kv_tokens, carried.token_s) == (64, ())
    other = Engine(FCFS(), SECONDS)
    other.submit(requests, carried=replace(carried, available_s=0.0))
    assert other.advance(1e-9) == pytest.approx(1.36)  # the 36 tokens that were left


def test_who_waits_takes_nothing_but_its_history():
    one_seat = Engine(FCFS(), replace(SECONDS, max_num_seqs=1))
    one_seat.submit(REQUEST)
    one_seat.submit(REQUEST._replace(request_id="second"))
    one_seat.submit(REQUEST._replace(request_id="third", arrival_s=50.0))
    one_seat.advance(2.0)
    nothing = Carried(available_s=one_seat.load.now_s)
    for request_id in ("second", "third"):
        assert one_seat.withdraw(state_of(one_seat, request_id)) == nothing
    assert one_seat.advance(inf) == inf
    assert one_seat.load.step == 10


def test_a_request_that_can_never_fit_is_rejected_at_once():
    engine = Engine(FCFS(), SECONDS)
    assert not engine.submit(REQUEST._replace(prompt_tokens=1000))
    engine.submit_all(make_requests(prompt_tokens=[1000, 1], output_tokens=[1, 1]))
    assert [live.is_gone for live in engine.requests] == [True, True, False]
    assert engine.advance(inf) == inf


def test_observers_are_told_of_a_departure():
    class Departures(EngineObserver):
        def withdrawn(self, request, now_s):
            told.append((request.request_id, request.generated_tokens))

    told, engine = [], Engine(FCFS(), SECONDS, observers=[Departures()])
    engine.submit(REQUEST)
    engine.advance(4.0)
    engine.withdraw(state_of(engine, "moved"))
    assert told == [("moved", 4)]


def test_a_row_of_requests_is_what_was_made():
    requests = make_requests(
        prompt_tokens=[3],
        output_tokens=[4],
        reasoning_tokens=[2],
        arrival_s=[1.5],
        tbt_s=[0.1],
        score_s=[2.0],
        client="me",
        cached_tokens=3,
    )
    request = simulated_request(requests, 0)
    assert request[1:] == (1.5, 3, 4, 2, None, "", 0.1, 0.5, (0, inf), "me", 2, ())
    view = request.view(5)
    assert (view.number, view.arrival_s, view.prompt_tokens, view.tbt_s) == (5, 1.5, 3, 0.1)
    assert view.cached_tokens == 2  # the last token of a prompt is computed
