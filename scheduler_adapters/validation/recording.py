"""The steps of a real engine, recorded."""

from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.steps import StepRecord


class StepRecorder(EngineObserver):
    """Collects the steps of an engine."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []

    def measured(self, step: StepRecord) -> None:
        self.steps.append(step)
