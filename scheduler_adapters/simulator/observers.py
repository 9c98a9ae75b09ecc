"""Observers of a simulated engine: its load over time, and a progress line."""

from array import array
from dataclasses import dataclass, fields

import numpy as np

from lengthwise.progress import Progress
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import LoadView, RequestView
from scheduler_adapters.workload.requests import Floats


@dataclass(frozen=True, slots=True, eq=False)
class LoadCurve:
    """The load during each of S steps, in the order of time."""

    end_s: Floats
    duration_s: Floats
    used_blocks: Floats
    num_waiting: Floats
    num_resident: Floats


class LoadRecorder(EngineObserver):
    """Records the load of every step."""

    def __init__(self) -> None:
        self._columns = [array("d") for _ in fields(LoadCurve)]

    def ran(self, load: LoadView, duration_s: float, num_resident: int) -> None:
        now = (load.now_s, duration_s, load.used_blocks, load.num_waiting, num_resident)
        for column, value in zip(self._columns, now, strict=True):
            column.append(value)

    def curve(self) -> LoadCurve:
        """Return the load of the steps that have ended."""
        return LoadCurve(*map(np.array, self._columns))


@dataclass(eq=False)
class ProgressLine(EngineObserver):
    """Progress line of a run of `num_requests`, in virtual time."""

    progress: Progress
    num_requests: int
    num_done: int = 0

    def ran(self, load: LoadView, duration_s: float, num_resident: int) -> None:
        self.progress.look(load.now_s, self.num_done, self.num_requests)

    def finished(self, request: RequestView, now_s: float) -> None:
        self.num_done += 1
