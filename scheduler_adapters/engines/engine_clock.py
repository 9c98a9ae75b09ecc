"""Clocks for the latencies of real engines.

On a shared machine the speed of a core changes by 10% and more for seconds at a time. CPU seconds
include these changes. The steady clock corrects them by a fixed piece of work beside the steps.
"""

import statistics
import time
from collections import deque
from typing import Final, Literal, TypeAlias

from lengthwise.errors import ConfigError

ClockKind = Literal["wall", "cpu", "steady"]

# The median of these pieces of work is the present speed: some tenths of a second of small steps.
_RECENT: Final = 16
# Steps of a tiny model take 1 ms: a piece beside each would be a third of all work. Steps of a
# small model take 4 to 13 ms and get one each: with one per 10 ms vLLM differed from itself by 11%,
# not by 7%.
_BETWEEN_PIECES_S: Final = 0.004
_REFERENCE_PIECES: Final = 51
# Read in order to have nothing else in the caches.
_CACHE_BYTES: Final = 64 * 2**20


class WallClock:
    """Seconds of wall time since the last restart."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin again at second 0."""
        self._start_s = time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() - self._start_s

    def wait_until(self, instant_s: float) -> None:
        """Sleep until then; a clock that counts only work skips ahead."""
        time.sleep(max(0.0, instant_s - self()))

    def note_speed(self) -> None:
        """Compare the machine's speed with its first speed; called before every step."""


class CpuClock(WallClock):
    """CPU seconds of this process since the last restart, and the idle time skipped."""

    _speed = 1.0

    def restart(self) -> None:
        self._now_s, self._read_at_s = 0.0, time.process_time()

    def __call__(self) -> float:
        read_s = time.process_time()
        self._now_s += (read_s - self._read_at_s) * self._speed
        self._read_at_s = read_s
        return self._now_s

    def wait_until(self, instant_s: float) -> None:
        self._now_s = max(self(), instant_s)


class SteadyClock(CpuClock):
    """CPU seconds, scaled to the machine's speed at the time this clock was made.

    The piece of work is a product of 4 rows with a matrix of 4 MiB: like a decode step it reads
    weights that are no longer in the caches. Its own time is not counted.
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


EngineClock: TypeAlias = WallClock


def clock_kind(device: str, wanted: ClockKind | None) -> ClockKind:
    """Return the kind of an engine's clock: steady for a single CPU thread, else wall.

    Raises:
        ConfigError: CPU seconds are wanted of a GPU, or of several threads, whose seconds add up.
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
    """Return a new clock of that kind."""
    return {"wall": WallClock, "cpu": CpuClock, "steady": SteadyClock}[kind]()
