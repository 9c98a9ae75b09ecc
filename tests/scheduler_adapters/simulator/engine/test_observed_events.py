"""Events of an engine: only observers that override an event are called."""

from scheduler_adapters.simulator.engine.observed_events import ObservedEvents
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import RequestView


class Finished(EngineObserver):
    def __init__(self) -> None:
        self.numbers: list[int] = []

    def finished(self, request, now_s):
        self.numbers.append(request.number)


def test_an_event_that_no_observer_overrides_has_no_method():
    events = ObservedEvents()
    for observer in (Finished(), EngineObserver(), Finished()):
        events.add(observer)
    assert len(events.finished) == 2
    for name in ("admitted", "emitted", "evicted", "queued", "ran", "withdrawn"):
        assert getattr(events, name) == []


def test_an_observer_may_be_added_later():
    events, late = ObservedEvents(), Finished()
    methods = events.finished
    events.add(late)
    for tell in methods:
        tell(RequestView("a", 7, 0.0, 1), 1.0)
    assert late.numbers == [7]
