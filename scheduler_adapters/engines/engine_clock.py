"""Clocks for the latencies of real engines.

A core of a shared machine is faster and slower by 10% and more for seconds at a time, as its
neighbours use caches and memory. CPU seconds count that as the engine's doing, and two runs of one
trace differ by it. So there is a clock that takes a fixed piece of work beside every step as its
measure, as one compares two programs by running them in turn.
"""

import statistics
import time
from collections import deque
from typing import Final, Literal, TypeAlias

from lengthwise.errors import ConfigError

ClockKind = Literal["wall", "cpu", "steady"]

_RECENT: Final = 16
"""Pieces of work whose median tells the speed of now: some tenths of a second of small steps."""
_BETWEEN_PIECES_S: Final = 0.004
"""Steps of a tiny model take 1 ms: a piece beside each would be a third of all work. Those of a
small one take 4 to 13 ms and get one each: with one per 10 ms vLLM differed from itself by 11%, not
by 7%."""
_REFERENCE_PIECES: Final = 51
_CACHE_BYTES: Final = 64 * 2**20
"""Read in order to have nothing else in the caches."""


class WallClock:
    """Seconds since it was restarted."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin again at second 0."""
        self._start_s = time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() - self._start_s

    def wait_until(self, instant_s: float) -> None:
        """Sleep, or where only work counts, skip."""
        time.sleep(max(0.0, instant_s - self()))

    def note_speed(self) -> None:
        """Compare the machine's speed with that at first; called before every step."""


class CpuClock:
    """CPU seconds of this process since it was restarted, and the idle time that was skipped."""

    def __init__(self) -> None:
        self._speed = 1.0
        self.restart()

    def restart(self) -> None:
        self._now_s, self._read_at_s = 0.0, time.process_time()

    def __call__(self) -> float:
        read_s = time.process_time()
        self._now_s += (read_s - self._read_at_s) * self._speed
        self._read_at_s = read_s
        return self._now_s

    def wait_until(self, instant_s: float) -> None:
        self._now_s = max(self(), instant_s)

    def note_speed(self) -> None:
        """Nothing to note: CPU seconds count as they are."""


class SteadyClock(CpuClock):
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
        self._next_piece_s = 0.0
        super().__init__()

    def note_speed(self) -> None:
        self()
        if self._read_at_s < self._next_piece_s:
            return
        self._recent_s.append(self._piece_s())
        self._speed = self._reference_s / statistics.median(self._recent_s)
        self._read_at_s = time.process_time()
        self._next_piece_s = self._read_at_s + _BETWEEN_PIECES_S

    def _piece_s(self) -> float:
        begun_s = time.process_time()
        self._rows @ self._matrix
        return time.process_time() - begun_s


EngineClock: TypeAlias = WallClock | CpuClock


def clock_kind(device: str, wanted: ClockKind | None) -> ClockKind:
    """Return the clock for an engine: steady where it computes in one CPU thread, else the wall's.

    Raises:
        ConfigError: CPU seconds of an engine on a GPU, or in several threads (their seconds add).
    """
    import torch

    threads = torch.get_num_threads()
    if device == "cpu" and threads == 1:
        return wanted or "steady"
    if wanted in ("cpu", "steady"):
        raise ConfigError(
            f"clock is {wanted!r}, but the engine computes on {device}, torch with {threads} CPU "
            "threads; set OMP_NUM_THREADS=1 for an engine on a CPU, else use the wall clock"
        )
    return "wall"


def make_clock(kind: ClockKind) -> EngineClock:
    """Return a clock of that kind."""
    if kind == "wall":
        return WallClock()
    return SteadyClock() if kind == "steady" else CpuClock()
