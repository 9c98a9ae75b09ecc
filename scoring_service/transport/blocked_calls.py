"""Those who wait for their client: each for a bounded time, and so many at once that all fit.

An honest client sends a message right behind its call, and reads what it asked for. So whoever has
waited longest is the one to go when there are too many.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Waiter = TypeVar("Waiter", bound=Hashable)
_log = logging.getLogger(__name__)


class Waiting(Generic[Waiter]):
    """Waiters in the order of their arrival. Threads share it.

    Args:
        give_up: called once with a waiter whose time is over or whose place another takes, unless
            it has left; on any thread, and it must not block.
        timeout_s: how long each may wait.
        max_waiting: beyond which the one who waits longest gives way.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        give_up: Callable[[Waiter], object],
        *,
        timeout_s: float,
        max_waiting: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._give_up = give_up
        self._timeout_s = timeout_s
        self._max_waiting = max_waiting
        self._clock = clock
        self._lock = threading.Lock()
        self._since: dict[Waiter, float] = {}

    def enter(self, waiter: Waiter) -> None:
        """Begin to wait, or begin anew."""
        with self._lock:
            self._since.pop(waiter, None)
            self._since[waiter] = self._clock()
            is_full = len(self._since) > self._max_waiting
        if is_full:
            self._drop(1)

    def leave(self, waiter: Waiter) -> bool:
        """Wait no more; False if it was not waiting, so has been given up."""
        with self._lock:
            return self._since.pop(waiter, None) is not None

    def sweep(self) -> None:
        """Give those up whose time is over."""
        with self._lock:
            begun_s = self._clock() - self._timeout_s
            overdue = sum(since_s <= begun_s for since_s in self._since.values())
        self._drop(overdue)

    def give_way(self, least_s: float) -> None:
        """Give the one up who has waited longest, if for at least so long."""
        with self._lock:
            longest_s = self._clock() - next(iter(self._since.values()), self._clock())
        if longest_s >= least_s:
            self._drop(1)

    def clear(self) -> None:
        """Give everybody up."""
        self._drop(len(self._since))

    def __len__(self) -> int:
        return len(self._since)

    def _drop(self, num: int) -> None:
        for _ in range(num):
            with self._lock:
                waiter = next(iter(self._since), None)
                if waiter is None:
                    break
                del self._since[waiter]
            try:
                self._give_up(waiter)
            except Exception:
                _log.exception("a waiter could not be given up")
