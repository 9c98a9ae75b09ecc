"""Observers: every event may be ignored, and costly ones are reported only to their observers."""

import inspect

from scheduler_adapters.timeline import observer
from scheduler_adapters.timeline.observer import EngineObserver, RunObserver, measuring
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
    assert measuring([plain, measures, inherits]) == [measures, inherits]
    assert measuring([plain]) == []


def test_tokens_are_read_in_runs_and_kept_for_a_bounded_number_of_steps(monkeypatch):
    monkeypatch.setattr(observer, "_MAX_STEPS", 4)
    runs, calls, (a, b) = RunObserver(), [], [RequestView(name, 0, 0.0, 1) for name in "ab"]
    runs.open, runs.took = {"a": "a", "b": "b"}, lambda *of: calls.append(of)
    for now_s, counts in enumerate(([1, 1], [1, 1], [1, 2], [1], [1])):
        runs.emitted_each([a, b][: len(counts)], counts, now_s)
    runs.take("a", ends=True)
    assert calls == [("b", [0, 1], 1), ("b", [2], 2), ("a", [0, 1, 2, 3], 1), ("a", [4], 1)]
