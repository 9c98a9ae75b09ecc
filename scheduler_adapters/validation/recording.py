"""The recording of a real engine: token times and steps."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_adapters.engines.driver import EngineDriver
from scheduler_adapters.engines.engine_clock import EngineClock
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Requests


@dataclass(frozen=True)
class EngineRecording:
    """The course of serving some requests."""

    timeline: Timeline
    steps: Sequence[StepRecord]


def record(
    driver: EngineDriver, requests: Requests, *, clock: EngineClock, seed: int
) -> EngineRecording:
    """Serve the requests as they arrive, and record it; `seed` is that of the prompts."""
    recorder = StepRecorder()
    run = driver.serve(requests, clock=clock, seed=seed, observers=[recorder])
    return EngineRecording(run.timeline, recorder.steps)


class StepRecorder(EngineObserver):
    """Collects the steps of an engine."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []

    def measured(self, step: StepRecord) -> None:
        self.steps.append(step)
