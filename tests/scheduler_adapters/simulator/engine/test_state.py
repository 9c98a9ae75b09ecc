"""The shared state: counts for the policy, and events that only overriding observers hear."""

from __future__ import annotations

from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.simulator.engine.state import EngineState, ObservedEvents
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import RequestView


class Finished(EngineObserver):
    def __init__(self) -> None:
        self.numbers: list[int] = []

    def finished(self, request, now_s):
        self.numbers.append(request.number)


def test_an_event_that_nobody_overrides_has_no_listener():
    events = ObservedEvents([Finished(), EngineObserver(), Finished()])
    assert len(events.finished) == 2
    for name in ("admitted", "emitted", "evicted", "queued", "ran", "withdrawn"):
        assert getattr(events, name) == []


def test_an_observer_may_come_later():
    events, late = ObservedEvents([]), Finished()
    listeners = events.finished
    events.add(late)
    for tell in listeners:
        tell(RequestView("a", 7, 0.0, 1), 1.0)
    assert late.numbers == [7]


def test_residents_that_neither_prefill_nor_return_decode():
    instance = Instance(latency=AffineLatency(base_s=1.0), kv_blocks=9)
    state = EngineState(FCFS(), instance, [])
    for row in range(6):
        state.residents[row] = RequestState(row, RequestView(str(row), row, 0.0, 1), 1, 0)
    state.num_waiting, state.num_prefilling, state.num_returning = 5, 1, 2
    state.count()
    load = state.load
    assert (load.num_waiting, load.num_prefilling, load.num_decoding) == (5, 1, 3)
    assert load.total_blocks == 9
