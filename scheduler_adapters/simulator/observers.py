"""Observers of a simulated engine: its load over time, and a progress line."""

from __future__ import annotations

from array import array

import numpy as np

from scheduler_adapters.progress import Progress
from scheduler_adapters.timeline.load_curve import LoadCurve
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import LoadView, RequestView
from scheduler_adapters.workload.requests import Requests


class LoadRecorder(EngineObserver):
    """Records the load of every step."""

    def __init__(self) -> None:
        self._columns = [array("d") for _ in range(5)]

    def ran(self, load: LoadView, duration_s: float, num_resident: int) -> None:
        now = (load.now_s, duration_s, load.used_blocks, load.num_waiting, num_resident)
        for column, value in zip(self._columns, now, strict=True):
            column.append(value)

    def curve(self) -> LoadCurve:
        """Return the load of the steps that have ended."""
        end_s, duration_s, used_blocks, num_waiting, num_resident = map(np.array, self._columns)
        return LoadCurve(
            end_s=end_s,
            duration_s=duration_s,
            used_blocks=used_blocks,
            num_waiting=num_waiting,
            num_resident=num_resident,
        )


class ProgressLine(EngineObserver):
    """Shows on a terminal how far a run of `num_requests` is, in virtual time."""

    def __init__(self, progress: Progress, num_requests: int) -> None:
        self.progress = progress
        self.num_requests = num_requests
        self.num_done = 0

    def ran(self, load: LoadView, duration_s: float, num_resident: int) -> None:
        self.progress.look(load.now_s, self.num_done, self.num_requests)

    def finished(self, request: RequestView, now_s: float) -> None:
        self.num_done += 1


def progress_lines(progress: Progress, requests: Requests) -> list[EngineObserver]:
    """Return the observer of a run of `requests` that shows it, or none without a terminal."""
    return [ProgressLine(progress, len(requests))] if progress.is_shown else []
