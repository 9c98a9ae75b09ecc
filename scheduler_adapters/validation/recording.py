"""The recording of a real engine: all that a simulator can be held to.

Token times, the size and duration of each step, and the requests that the scheduler admitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

from scheduler_adapters.engines.driver import EngineDriver
from scheduler_adapters.engines.engine_clock import EngineClock
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.validation.decision_replay import Admitted, Queued
from scheduler_adapters.views import LoadView, RequestView
from scheduler_adapters.workload.requests import Requests


@dataclass(frozen=True)
class EngineRecording:
    """The course of serving some requests."""

    timeline: Timeline
    steps: Sequence[StepRecord]
    decisions: Sequence[Queued | Admitted]
    """Empty under an engine's own scheduler."""


def record(
    driver: EngineDriver, requests: Requests, *, clock: EngineClock, seed: int
) -> EngineRecording:
    """Serve the requests as they arrive, and record it.

    Args:
        clock: restarted here; the seconds of all that is recorded.
        seed: of the prompts.
    """
    recorder = Recorder()
    run = driver.serve(requests, clock=clock, seed=seed, observers=[recorder])
    return EngineRecording(run.timeline, recorder.steps, recorder.decisions)


class StepRecorder(EngineObserver):
    """Collects the steps of an engine."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []

    def measured(self, step: StepRecord) -> None:
        self.steps.append(step)


class Recorder(StepRecorder):
    """Collects the steps of an engine and the decisions about its queue."""

    def __init__(self) -> None:
        super().__init__()
        self.decisions: list[Queued | Admitted] = []
        self._load = LoadView()

    def attached(self, load: LoadView) -> None:
        self._load = load

    def queued(self, request: RequestView, now_s: float) -> None:
        self.decisions.append(Queued(copy(request), copy(self._load)))

    def evicted(self, request: RequestView, now_s: float) -> None:
        self.queued(request, now_s)

    def admitted(self, request: RequestView, now_s: float) -> None:
        self.decisions.append(Admitted((request.number,), copy(self._load)))
