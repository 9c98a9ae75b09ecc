"""Runs of the simulator as the commands want them: watched, and readable when interrupted."""

from __future__ import annotations

from array import array
from functools import partial
from typing import Any, Literal

import numpy as np

from scheduler_adapters.policy import Policy
from scheduler_adapters.progress import Progress
from scheduler_adapters.simulator.closed_loop import ClosedLoopEngine
from scheduler_adapters.simulator.engine.cohort import Live
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.vllm_engine import VllmEngine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.load_curve import LoadCurve
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Requests

EngineKind = Literal["plain", "vllm"]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run; `timeline` holds what had happened by then."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self.timeline = timeline


class Watched(Engine):
    """The engine, telling its progress and writing down its load at every step.

    Costs up to 2 us a step; results are the same.
    """

    def __init__(self, policy: Policy, instance: Instance, progress: Progress, **more: Any) -> None:
        super().__init__(policy, instance, **more)
        self.progress = progress
        self.num_done = 0
        self.is_running = False
        self.columns = [array("d") for _ in range(4)]

    def run(self, requests: Requests) -> Timeline:
        try:
            return super().run(requests)
        except KeyboardInterrupt as error:
            if self.is_running:
                raise Interrupted(self.timeline()) from error
            raise

    def load_so_far(self) -> LoadCurve:
        """The load of the steps that have ended."""
        duration_s, used_blocks, num_waiting, num_resident = map(np.array, self.columns)
        return LoadCurve(
            end_s=np.array(self.record.tick_s),
            duration_s=duration_s,
            used_blocks=used_blocks,
            num_waiting=num_waiting,
            num_resident=num_resident,
        )

    def _expect(self, requests: Requests) -> None:
        super()._expect(requests)
        self.is_running = True

    def _pass(self, duration_s: float) -> None:
        super()._pass(duration_s)
        now = (duration_s, self.used_blocks, self.num_waiting, len(self.residents))
        for column, value in zip(self.columns, now, strict=True):
            column.append(value)
        if self.progress.is_shown:
            self.progress.look(self.load.now_s, self.num_done, self.num_rows)

    def _finish(self, live: Live) -> None:
        super()._finish(live)
        self.num_done += 1


class _WatchedVllm(Watched, VllmEngine):
    pass


class _WatchedClosedLoop(Watched, ClosedLoopEngine):
    pass


class _WatchedVllmClosedLoop(Watched, ClosedLoopEngine, VllmEngine):
    pass


_ENGINES: dict[tuple[EngineKind, bool], type[Watched]] = {
    ("plain", False): Watched,
    ("vllm", False): _WatchedVllm,
    ("plain", True): _WatchedClosedLoop,
    ("vllm", True): _WatchedVllmClosedLoop,
}
"""By what `--engine` names, and whether clients wait for their answers."""


def run_with_load(
    requests: Requests,
    policy: Policy,
    instance: Instance,
    progress: Progress,
    *,
    engine: EngineKind = "plain",
    clients: int | None = None,
) -> tuple[Timeline, LoadCurve]:
    """Serve `requests` in virtual time, step by step in plain Python; `clients`: closed loop.

    Raises:
        Interrupted: Ctrl-C.
        InvalidDecision, SchedulingError: as `simulate` does.
    """
    more = {} if clients is None else {"clients": clients}
    watched = _ENGINES[engine, clients is not None](policy, instance, progress, **more)
    return watched.run(requests), watched.load_so_far()


def run_requests(
    requests: Requests,
    policy: Policy,
    instance: Instance,
    progress: Progress,
    *,
    engine: EngineKind = "plain",
    clients: int | None = None,
) -> Timeline:
    """The same without the load, so that many requests may take the compiled engine."""
    if engine == "vllm" or clients is not None:
        return run_with_load(requests, policy, instance, progress, engine=engine, clients=clients)[
            0
        ]
    make_engine = partial(Watched, progress=progress)
    return simulate(requests, policy, instance, make_engine=make_engine)
