"""Events of an engine: only observers that override an event are called."""

from scheduler_adapters.simulator.engine.observed_events import ObservedEvents
from scheduler_adapters.timeline.observer import EngineObserver


class Finished(EngineObserver):
    def finished(self, request, now_s):
        pass


def test_an_event_that_no_observer_overrides_has_no_method():
    events = ObservedEvents()
    for observer in (Finished(), EngineObserver(), Finished()):
        events.add(observer)
    assert len(events.finished) == 2
    for name in ("admitted", "emitted", "evicted", "queued", "ran", "withdrawn"):
        assert getattr(events, name) == []
