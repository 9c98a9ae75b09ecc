"""Threads for work that would block the thread that serves all calls."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Workers:
    """Runs tasks in their order of arrival, within limits on their number and bytes."""

    num_threads: int
    max_tasks: int
    """Most tasks that are accepted and not finished."""
    max_bytes: int
    """Bytes of accepted tasks from which on no further task is accepted."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _num_tasks: int = 0
    _num_bytes: int = 0

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(self.num_threads, "worker")

    @property
    def is_full(self) -> bool:
        """True while further tasks are refused."""
        return self._num_tasks >= self.max_tasks or self._num_bytes >= self.max_bytes

    def submit(self, num_bytes: int, task: Callable[[], object]) -> bool:
        """Run a task that holds so many bytes; return False if it is refused."""
        with self._lock:
            if self.is_full:
                return False
            self._num_tasks += 1
            self._num_bytes += num_bytes
        self._threads.submit(self._run, num_bytes, task)
        return True

    def close(self) -> None:
        """Start no further task."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, num_bytes: int, task: Callable[[], object]) -> None:
        try:
            task()
        except Exception:
            _log.exception("a task failed")
        finally:
            del task  # Its memory is freed before its place is.
            with self._lock:
                self._num_tasks -= 1
                self._num_bytes -= num_bytes
