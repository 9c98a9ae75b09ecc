"""Limits of a server: calls blocked on their client, and tasks that wait for a thread."""

import logging
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from scoring_service.shares import NOBODY, Client, FairQueue

C = TypeVar("C", bound=Hashable)
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class BlockedCalls(Generic[C]):
    """Calls in the order in which they blocked. Threads share it."""

    # An honest client sends a message right behind its call, and reads its answer. So of too many
    # blocked calls the oldest one is the most suspicious.
    cancel: Callable[[C], object]
    """Called once with a call that exceeds a limit, on any thread; it must not block."""
    timeout_s: float
    """Longest time that a call may be blocked."""
    max_calls: int
    """Number of calls beyond which the oldest one is cancelled."""
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _since: dict[C, float] = field(default_factory=dict)

    def add(self, call: C) -> None:
        """Add a call, or restart its time."""
        with self._lock:
            self._since.pop(call, None)
            self._since[call] = self.clock()
            is_full = len(self._since) > self.max_calls
        if is_full:
            self._cancel_while(lambda _: len(self._since) > self.max_calls)

    def remove(self, call: C) -> bool:
        """Remove a call; return False if it was cancelled before."""
        with self._lock:
            return self._since.pop(call, None) is not None

    def cancel_overdue(self) -> None:
        """Cancel the calls that exceed the time limit."""
        self._cancel_while(lambda since_s: since_s <= self.clock() - self.timeout_s)

    def cancel_all(self) -> None:
        self._cancel_while(lambda _: True)

    def __len__(self) -> int:
        return len(self._since)

    def _cancel_while(self, is_due: Callable[[float], bool]) -> None:
        """Cancel the oldest call while `is_due` holds for its start."""
        while True:
            with self._lock:
                call = next(iter(self._since), None)
                if call is None or not is_due(self._since[call]):
                    return
                del self._since[call]
            try:
                self.cancel(call)
            except Exception:
                _log.exception("a blocked call could not be cancelled")


@dataclass(eq=False)
class Workers:
    """Runs tasks of clients in turn, within limits on their number and bytes."""

    num_threads: int
    max_tasks: int
    """Most tasks that are accepted and not finished; of a full queue each client has a part."""
    max_bytes: int
    """Most bytes of these."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _queue: FairQueue[Callable[[], object]] = field(default_factory=FairQueue)
    _num_running: int = 0
    _bytes_running: float = 0

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(self.num_threads, "worker")

    def has_room(self, client: Client) -> bool:
        """Return whether a small task would be accepted."""
        with self._lock:
            return self._fits(client, 1)

    def submit(self, num_bytes: int, task: Callable[[], object], client: Client = NOBODY) -> bool:
        """Run a task that holds so many bytes; return False if it is refused."""
        with self._lock:
            if not self._fits(client, num_bytes):
                return False
            self._queue.push(client, task, num_bytes)
        self._threads.submit(self._run)
        return True

    def close(self) -> None:
        """Start no further task."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _fits(self, client: Client, num_bytes: int) -> bool:
        tasks, size = self.max_tasks - self._num_running, self.max_bytes - self._bytes_running
        return self._queue.fits(client, tasks) and self._queue.fits(client, size, num_bytes)

    def _run(self) -> None:
        with self._lock:
            entry = self._queue.pop()
            assert entry is not None, "one run for each task"
            self._num_running += 1
            self._bytes_running += (num_bytes := entry.cost)
        try:
            entry.item()
        except Exception:
            _log.exception("a task failed")
        finally:
            del entry  # Its memory is freed before its place is.
            with self._lock:
                self._num_running -= 1
                self._bytes_running -= num_bytes
