"""The recording of a real engine, and the replay of its decisions through a policy.

A replay ranks the same requests at the same times by a fresh policy, and counts the admissions that
took the first-ranked request.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass

from scheduler_adapters.engines.driver import EngineDriver
from scheduler_adapters.engines.engine_clock import EngineClock
from scheduler_adapters.policy import Policy, ask_rank
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import LoadView, Rank, RequestView
from scheduler_adapters.workload.requests import Requests


@dataclass(frozen=True, slots=True)
class Queued:
    """A request arrived, or lost its blocks, and waits."""

    view: RequestView
    load: LoadView


@dataclass(frozen=True, slots=True)
class Admitted:
    """A step began for these waiting requests (by number), in this order."""

    numbers: tuple[int, ...]
    load: LoadView


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
    """Serve the requests as they arrive, and record it; `seed` is that of the prompts."""
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

    evicted = queued

    def admitted(self, request: RequestView, now_s: float) -> None:
        self.decisions.append(Admitted((request.number,), copy(self._load)))


def replay(policy: Policy, decisions: Iterable[Queued | Admitted]) -> tuple[int, int]:
    """Return the number of admissions, and of admissions that took the policy's first request.

    Raises InvalidDecision if the policy fails to rank.
    """
    waiting: dict[int, tuple[RequestView, Rank]] = {}
    num_admissions = num_equal = 0
    for decision in decisions:
        if isinstance(decision, Queued):
            view = copy(decision.view)
            waiting[view.number] = (view, ask_rank(policy, view, decision.load))
            continue
        for number, (view, rank) in waiting.items():
            waiting[number] = (view, _current(policy, view, rank, decision.load))
        for number in decision.numbers:
            first = min(waiting, key=lambda n: (waiting[n][1].lane, waiting[n][1].key, n))
            num_admissions += 1
            num_equal += first == number
            del waiting[number]
    return num_admissions, num_equal


def _current(policy: Policy, view: RequestView, rank: Rank, load: LoadView) -> Rank:
    """Return the rank that is valid now, following the successors of ranks that have ended."""
    while rank.valid_until_s <= load.now_s:
        view.previous = rank
        rank = ask_rank(policy, view, load) if rank.then is None else rank.then
    return rank
