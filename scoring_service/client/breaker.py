"""A circuit breaker: no calls to a service that does not answer, until a trial call succeeds."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(kw_only=True, eq=False)
class CircuitBreaker:
    """Closed: all callers may ask. Open: none. Open long enough: one may try."""

    max_failures: int = 3
    """Consecutive failures that open it."""
    open_s: float = 0.5
    """How long it stays open at first, seconds; doubles with every failed try."""
    max_open_s: float = 15.0
    """The longest it stays open."""
    clock: Callable[[], float] = time.monotonic
    """Seconds, monotonic."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._open_s = self.open_s
        self._open_until_s: float | None = None
        self._trying = False

    def allow(self) -> bool:
        """Whether this caller may ask. If so it must report a success or failure, or be unsure."""
        with self._lock:
            if self._open_until_s is None:
                return True
            if self._trying or self.clock() < self._open_until_s:
                return False
            self._trying = True
            return True

    def success(self) -> None:
        """Record that the service answered."""
        with self._lock:
            self._failures, self._open_s = 0, self.open_s
            self._open_until_s, self._trying = None, False

    def failure(self) -> None:
        """Record that the service did not answer."""
        with self._lock:
            self._failures += 1
            if self._trying:
                self._open_s = min(self._open_s * 2, self.max_open_s)
            if self._trying or self._failures == self.max_failures:
                self._open(self._open_s)

    def unsure(self) -> None:
        """Record that a caller learnt nothing of the service: the next one may try."""
        with self._lock:
            self._trying = False

    def pause(self, seconds: float) -> None:
        """Open for as long as the service asked for."""
        with self._lock:
            self._open(min(seconds, self.max_open_s))

    def _open(self, seconds: float) -> None:
        # Clients that failed together must not come back together.
        self._open_until_s = self.clock() + seconds * random.uniform(0.8, 1.2)
        self._trying = False
