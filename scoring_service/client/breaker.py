"""Circuit breaker: no calls to a failing service until a trial call succeeds."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(kw_only=True, eq=False)
class CircuitBreaker:
    """Closed, it permits all calls; open, none; after `open_s`, one trial call."""

    max_failures: int = 3
    """Consecutive failures that open the breaker."""
    open_s: float = 0.5
    """Time for which it first stays open, seconds; doubles with every failed trial call."""
    max_open_s: float = 15.0
    """Longest time for which it stays open, seconds."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._failures = 0
        self._open_s = self.open_s
        self._open_until_s: float | None = None
        self._trying = False

    @property
    def open_for_s(self) -> float | None:
        """Seconds in which no call is permitted; 0: a trial call is; None: it is closed."""
        with self._lock:
            if self._open_until_s is None:
                return None
            # The end of a trial call is not known: it is looked for again soon.
            return max(self._open_until_s - self.clock(), 0.05 if self._trying else 0.0)

    def allow(self) -> bool:
        """Return True if a call is permitted: then report `success`, `failure` or `unsure`."""
        with self._lock:
            if self.open_for_s:
                return False
            self._trying = self._open_until_s is not None
            return True

    def success(self) -> None:
        """Record an answer of the service."""
        with self._lock:
            self._failures, self._open_s = 0, self.open_s
            self._open_until_s, self._trying = None, False

    def failure(self) -> None:
        """Record a failure of the service."""
        with self._lock:
            self._failures += 1
            if self._trying:
                self._open_s = min(self._open_s * 2, self.max_open_s)
            if self._trying or self._failures == self.max_failures:
                self._open(self._open_s)

    def unsure(self) -> None:
        """Record a call without evidence about the service: the next call is permitted."""
        with self._lock:
            self._trying = False

    def pause(self, seconds: float) -> None:
        """Open for the time that the service demands."""
        with self._lock:
            self._open(min(seconds, self.max_open_s))

    def _open(self, seconds: float) -> None:
        # Clients that failed together must not retry together.
        self._open_until_s = self.clock() + seconds * random.uniform(0.8, 1.2)
        self._trying = False
