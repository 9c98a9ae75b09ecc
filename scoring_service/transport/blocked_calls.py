"""Calls blocked on their client: time limit and maximum number."""

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)
_log = logging.getLogger(__name__)


class BlockedCalls(Generic[C]):
    """Calls in the order in which they blocked. Threads share it.

    Args:
        cancel: called once with a call that exceeds a limit, on any thread; it must not block.
        timeout_s: longest time that a call may be blocked.
        max_calls: number of calls beyond which the oldest one is cancelled.
        clock: seconds, monotonic.
    """

    # An honest client sends a message right behind its call, and reads its answer. So of too many
    # blocked calls the oldest one is the most suspicious.
    def __init__(
        self,
        cancel: Callable[[C], object],
        *,
        timeout_s: float,
        max_calls: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cancel = cancel
        self._timeout_s = timeout_s
        self._max_calls = max_calls
        self._clock = clock
        self._lock = threading.Lock()
        self._since: dict[C, float] = {}

    def add(self, call: C) -> None:
        """Add a call, or restart its time."""
        with self._lock:
            self._since.pop(call, None)
            self._since[call] = self._clock()
            is_full = len(self._since) > self._max_calls
        if is_full:
            self._cancel_while(lambda _: len(self._since) > self._max_calls)

    def remove(self, call: C) -> bool:
        """Remove a call; return False if it was cancelled before."""
        with self._lock:
            return self._since.pop(call, None) is not None

    def cancel_overdue(self) -> None:
        """Cancel the calls that exceed the time limit."""
        self._cancel_while(lambda since_s: since_s <= self._clock() - self._timeout_s)

    def cancel_all(self) -> None:
        """Cancel all waiting calls."""
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
                self._cancel(call)
            except Exception:
                _log.exception("a blocked call could not be cancelled")
