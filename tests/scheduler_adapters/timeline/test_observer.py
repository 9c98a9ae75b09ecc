"""Observers: every event may be ignored, and costly ones are asked for only where wanted."""

import inspect

from scheduler_adapters.timeline.observer import EngineObserver, measuring
from scheduler_adapters.timeline.steps import StepRecord


class Measures(EngineObserver):
    """Wants the size of each step."""

    def measured(self, step: StepRecord) -> None:
        pass


class MeasuresToo(Measures):
    """Inherits that wish."""


def test_an_observer_may_ignore_every_event():
    observer = EngineObserver()
    for name, event in inspect.getmembers(observer, inspect.ismethod):
        assert event(*[None] * len(inspect.signature(event).parameters)) is None, name


def test_steps_are_measured_only_for_those_that_override_it():
    plain, measures, inherits = EngineObserver(), Measures(), MeasuresToo()
    assert measuring([plain, measures, inherits]) == [measures, inherits]
    assert measuring([plain]) == []
