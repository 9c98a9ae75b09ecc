"""Time passes in pieces of any size, with the bytes of one run; observers see the same run."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lengthwise.errors import SchedulingError
from scheduler_adapters.policies.fair_shares import ClassPriority
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.rad import RAD, RADTwin
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policy import POLICIES, load_policy
from scheduler_adapters.simulator.engine.arrivals import request_states
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.step_scheduling import StepScheduler
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency, LatencyModel
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.simulator.any_policy import (
    OFFLOADING,
    SMALL,
    assert_equal,
    hosts,
    instances,
    policies,
    serve,
    workloads,
)

MAKERS = {
    **{name: lambda name=name: load_policy(name) for name in POLICIES},
    "rad-small": lambda: RAD(max_started=3, tile=2, chunk=16),
    "rad-twin-small": lambda: RADTwin(max_started=3, tile=2, chunk=16),
    **SMALL,
    **OFFLOADING,
    "class(pars)": lambda: ClassPriority(pars(starve_after_s=0.2)),
}
pieces = st.lists(st.sampled_from([1e-4, 0.003, 0.014, 0.05, 0.4, 3.0]), min_size=1, max_size=60)


def in_pieces(engine: Engine, requests, sizes):
    """Serve all requests; time passes in pieces of these sizes, then to the end."""
    engine.submit_all(requests)
    until_s = 0.0
    for size in sizes:
        until_s += size
        assert engine.advance(until_s) >= until_s
    assert engine.advance(inf) == inf
    return engine.timeline(requests)


def as_they_arrive(engine: Engine, requests):
    """Serve all requests; each is handed over at the moment it arrives."""
    for request in request_states(requests):
        engine.advance(request.view.arrival_s)
        engine.submit(request)
    engine.advance(inf)
    return engine.timeline(requests)


def assert_pieces_are_one_run(make_engine, requests, sizes):
    whole = serve(make_engine(), requests)
    assert_equal(in_pieces(make_engine(), requests, sizes), whole)
    assert_equal(as_they_arrive(make_engine(), requests), whole)


@settings(max_examples=100, deadline=None)
@given(workloads(), policies, instances, pieces)
def test_time_in_pieces_gives_the_bytes_of_one_run(requests, policy, instance, sizes):
    assert_pieces_are_one_run(lambda: Engine(policy, instance), requests, sizes)


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=20, deadline=None)
@given(requests=workloads(), instance=instances, host=hosts, sizes=pieces, vllm=st.booleans())
def test_so_it_does_for_every_policy_of_ours(name, requests, instance, host, sizes, vllm):
    if name in OFFLOADING:
        instance = replace(instance, host=host)
    assert_pieces_are_one_run(lambda: Engine(MAKERS[name](), instance, vllm=vllm), requests, sizes)


SECONDS = Instance(latency=AffineLatency(base_s=1.0), kv_blocks=9, watermark_fraction=0.0)


def test_advance_runs_the_steps_before_and_says_when_the_next_is():
    engine = Engine(FCFS(), SECONDS)
    assert engine.advance(5.0) == inf
    engine.submit_all(make_requests(prompt_tokens=[8], output_tokens=[3], arrival_s=[2.0]))
    assert engine.advance(2.0) == 2.0  # it arrives then, and no step starts before
    assert engine.advance(2.5) == 3.0
    assert engine.advance(3.0) == 3.0
    assert engine.advance(4.0) == 4.0
    assert engine.load.step == 2
    assert engine.advance(100.0) == inf
    assert engine.load.now_s == 5.0


@pytest.fixture
def num_filled(monkeypatch):
    """The number of steps that were filled so far, in a list."""
    count, fill = [0], StepScheduler.fill

    def counting(self, instead=None):
        count[0] += 1
        fill(self, instead)

    monkeypatch.setattr(StepScheduler, "fill", counting)
    return count


@pytest.mark.parametrize("between_s", [0.5, 3.0, inf])
def test_a_step_is_filled_anew_only_where_something_changed(num_filled, between_s):
    engine = Engine(RoundRobin(quantum_tokens=4), replace(SECONDS, kv_blocks=99))
    engine.submit_all(make_requests(prompt_tokens=[8, 8], output_tokens=[30, 50]))
    until_s = 0.0
    while engine.advance(until_s) < inf:
        until_s += between_s
    # Two prefills, and the first step without one: no end of a quantum, no finish, no advance.
    assert num_filled == [2]
    assert engine.load.step == 50


def test_it_is_where_a_waiting_request_might_displace_another(num_filled):
    engine = Engine(RoundRobin(quantum_tokens=4), replace(SECONDS, kv_blocks=99, max_num_seqs=1))
    engine.submit_all(make_requests(prompt_tokens=[8, 8], output_tokens=[9, 1]))
    engine.advance(inf)
    assert num_filled == [5]  # first and second step, ends of two quanta, second request


class TokenCounter(EngineObserver):
    """Counts reported tokens, by request number."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[float]] = {}
        self.queued_s: dict[int, float] = {}
        self.admissions = self.evictions = 0
        self.finished_s: dict[int, float] = {}

    def queued(self, request, now_s):
        self.queued_s[request.number] = now_s

    def admitted(self, request, now_s):
        self.admissions += 1

    def emitted(self, request, num_tokens, now_s):
        assert num_tokens == 1
        times_s = self.tokens.setdefault(request.number, [])
        times_s.append(now_s)
        assert request.generated_tokens == len(times_s)

    def evicted(self, request, now_s):
        self.evictions += 1

    def finished(self, request, now_s):
        self.finished_s[request.number] = now_s


@settings(max_examples=60, deadline=None)
@given(workloads(), policies, instances)
def test_observers_are_told_of_every_token_and_change_nothing(requests, policy, instance):
    counter = TokenCounter()
    timeline = serve(Engine(policy, instance, observers=[counter]), requests)
    assert_equal(timeline, serve(Engine(policy, instance), requests))
    served = np.flatnonzero(~timeline.rejected).tolist()
    assert sorted(counter.queued_s) == sorted(counter.finished_s) == served
    for row in served:
        assert counter.tokens[row] == timeline.token_s(row).tolist()
        assert counter.finished_s[row] == timeline.finished_s[row]
        assert counter.queued_s[row] >= requests.arrival_s[row]
    assert counter.evictions == timeline.preemptions.sum()
    assert counter.admissions == len(served) + counter.evictions


class NoTime(LatencyModel):
    def step_s(self, num_decodes, decode_context, prefills):
        return 0.0


def test_a_step_without_duration_is_refused():
    requests = make_requests(prompt_tokens=[1], output_tokens=[1])
    with pytest.raises(SchedulingError, match=r"took 0\.0 s"):
        serve(Engine(FCFS(), replace(SECONDS, latency=NoTime())), requests)
