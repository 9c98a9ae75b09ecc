"""The clock by which an engine's latencies are told.

A core of a shared machine is faster and slower by 10% and more for seconds at a time, as its
neighbours use caches and memory. CPU seconds count that as the engine's doing, and two runs of one
trace differ by it. So there is a clock that takes a fixed piece of work beside every step as its
measure, as one compares two programs by running them in turn.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import Any, Final, Literal

from scoring_service.errors import ConfigError

ClockKind = Literal["wall", "cpu", "steady"]

_RECENT: Final = 16
"""Pieces of work whose median tells the speed of now: some tenths of a second of small steps."""
_REFERENCE_PIECES: Final = 51
_CACHE_BYTES: Final = 64 * 2**20
"""Read in order to have nothing else in the caches."""


class EngineClock:
    """Seconds since it was restarted, of the wall or of this process's CPU."""

    def __init__(self, kind: Literal["wall", "cpu"]) -> None:
        self._skips_idleness = kind == "cpu"
        self._read = time.process_time if kind == "cpu" else time.monotonic
        self.restart()

    def restart(self) -> None:
        """It is second 0."""
        self._start_s = self._read()

    def __call__(self) -> float:
        return self._read() - self._start_s

    def wait_until(self, instant_s: float) -> None:
        """Sleep, or where only work counts, skip."""
        wait_s = max(0.0, instant_s - self())
        if self._skips_idleness:
            self._start_s -= wait_s
        else:
            time.sleep(wait_s)

    def note_speed(self) -> None:
        """To be called once for every step of the engine."""


class SteadyClock(EngineClock):
    """CPU seconds of a machine that stays as fast as it was when this clock was made.

    The piece of work is a product of 4 rows with a matrix of 4 MiB: like a decode step it reads
    weights that the caches have lost meanwhile. What it takes is not counted.
    """

    def __init__(self) -> None:
        import torch

        self._rows, self._matrix = torch.ones(4, 512), torch.ones(512, 2048)
        others = torch.ones(_CACHE_BYTES // 4)
        pieces_s = []
        for _ in range(_REFERENCE_PIECES):
            others.sum()
            pieces_s.append(self._piece_s())
        self._reference_s = statistics.median(pieces_s)
        self._recent_s = deque([self._reference_s], _RECENT)
        self._speed = 1.0
        super().__init__("cpu")

    def restart(self) -> None:
        self._now_s, self._read_at_s = 0.0, self._read()

    def __call__(self) -> float:
        read_s = self._read()
        self._now_s += (read_s - self._read_at_s) * self._speed
        self._read_at_s = read_s
        return self._now_s

    def wait_until(self, instant_s: float) -> None:
        self._now_s = max(self(), instant_s)

    def note_speed(self) -> None:
        self()
        self._recent_s.append(self._piece_s())
        self._speed = self._reference_s / statistics.median(self._recent_s)
        self._read_at_s = self._read()

    def _piece_s(self) -> float:
        begun_s = time.process_time()
        self._rows @ self._matrix
        return time.process_time() - begun_s


def clock_of(engine: Any, wanted: ClockKind | None) -> ClockKind:
    """The clock for an engine: steady where it computes in one CPU thread, else that of the wall.

    Raises:
        ConfigError: CPU seconds of an engine on a GPU, or in several threads (their seconds add).
    """
    import torch

    device, threads = engine.vllm_config.device_config.device_type, torch.get_num_threads()
    if device == "cpu" and threads == 1:
        return wanted or "steady"
    if wanted in ("cpu", "steady"):
        raise ConfigError(
            f"clock is {wanted!r}, but vLLM computes on {device}, torch with {threads} CPU "
            "threads; set OMP_NUM_THREADS=1 for an engine on a CPU, else use the wall clock"
        )
    return "wall"


def make_clock(kind: ClockKind) -> EngineClock:
    """A clock of that kind."""
    return SteadyClock() if kind == "steady" else EngineClock(kind)
