"""Observers: every event may be ignored, and costly ones are reported only to their observers."""

import inspect
from typing import Any

from scheduler_adapters.timeline import observer
from scheduler_adapters.timeline.observer import (
    EngineObserver,
    LaterEvents,
    RunObserver,
    overriding,
)
from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.views import RequestView


class Measures(EngineObserver):
    """Reads the size of each step."""

    def measured(self, step: StepRecord) -> None:
        pass


class MeasuresToo(Measures):
    """Inherits that event."""


def test_an_observer_may_ignore_every_event():
    observer = EngineObserver()
    for name, event in inspect.getmembers(observer, inspect.ismethod):
        assert event(*[()] * len(inspect.signature(event).parameters)) is None, name


def test_steps_are_measured_only_for_those_that_override_it():
    plain, measures, inherits = EngineObserver(), Measures(), MeasuresToo()
    assert overriding([plain, measures, inherits], "measured") == [measures, inherits]
    assert overriding([plain], "measured") == []


def test_kept_events_arrive_in_their_order_after_some_steps(monkeypatch):
    monkeypatch.setattr(observer, "_STEPS_KEPT", 2)
    heard = list[tuple[Any, ...]]()

    class Hears(EngineObserver):
        def __getattribute__(self, event: str) -> Any:
            return lambda *told: heard.append((event, *told))

    later = LaterEvents(Hears())
    events = [name for name, _ in inspect.getmembers(EngineObserver, inspect.isfunction)]
    kept = [name for name in events if overriding([later], name) and name != "stepped"]
    expected = [(name, "a", number) for number, name in enumerate(kept)]
    for name, *told in expected:
        getattr(later, name)(*told)
    later.stepped(1.0)
    assert len(kept) == 8
    assert not heard
    later.stepped(2.0)
    assert heard == expected
    later.queued("b", 3.0)
    later.tell()
    assert heard == [*expected, ("queued", "b", 3.0)]


def test_tokens_are_read_in_runs_and_kept_for_bounded_steps(monkeypatch):
    monkeypatch.setattr(observer, "_MAX_STEPS", 4)
    runs, calls, (a, b) = RunObserver(), [], [RequestView(name, 0, 0.0, 1) for name in "ab"]
    runs.open, runs.took = {"a": "a", "b": "b"}, lambda *of: calls.append(of)
    for now_s, counts in enumerate(([1, 1], [1, 1], [1, 2], [1], [1])):
        runs.emitted_each([a, b][: len(counts)], counts, now_s)
    runs.take("a", ends=True)
    assert calls == [("b", [0, 1], 1), ("b", [2], 2), ("a", [0, 1, 2, 3], 1), ("a", [4], 1)]
