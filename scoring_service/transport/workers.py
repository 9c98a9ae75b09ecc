"""Threads for work that would block the thread that serves all calls."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_log = logging.getLogger(__name__)


class Workers:
    """Runs tasks in their order of arrival, within limits on their number and bytes.

    Args:
        max_tasks: most tasks that are accepted and not finished.
        max_bytes: bytes of accepted tasks from which on no further task is accepted.
    """

    def __init__(self, num_threads: int, *, max_tasks: int, max_bytes: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, "worker")
        self._max_tasks = max_tasks
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._num_tasks = 0
        self._num_bytes = 0

    @property
    def is_full(self) -> bool:
        """True while further tasks are refused."""
        return self._num_tasks >= self._max_tasks or self._num_bytes >= self._max_bytes

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
