"""A thread pool that prefers the thread that was busy last.

The standard pool passes work round among all its threads, and makes a future with a lock and a
condition for each piece. Here the same few threads stay in use, and with them their stacks,
allocator caches and the processor's caches; a piece of work only tells when it is done, which is
all that gRPC's server needs.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

_log: Final = logging.getLogger(__name__)


class Work:
    """One call to be made on a thread of the pool."""

    __slots__ = ("_call", "_callbacks", "_done")

    def __init__(self, call: tuple[Callable[..., Any], *tuple[Any, ...]]) -> None:
        self._call = call
        self._callbacks: list[Callable[[Work], None]] = []
        self._done = False

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        """Have `callback(self)` called once the work is done; at once if it is."""
        self._callbacks.append(callback)
        if self._done:
            self._call_back()

    def run(self) -> None:
        """Do the work. What it raises is logged."""
        function, *arguments = self._call
        try:
            function(*arguments)
        except Exception:
            _log.exception("a call of a thread pool failed")
        self._done = True
        self._call_back()

    def _call_back(self) -> None:
        # Whichever thread pops a callback makes the call, so each is made once.
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return
            callback(self)


class LifoPool:
    """At most `max_threads` daemon threads, started when needed; work beyond them queues."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._lock = threading.Lock()
        self._num_threads = 0
        self._idle: list[_Worker] = []
        self._backlog: deque[Work] = deque()
        self._closed = False

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Work:
        """Call `function` on a thread of the pool. Raises RuntimeError after `shutdown`."""
        work = Work((function, *arguments))
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is shut down")
            if self._idle:
                self._idle.pop().hand(work)
            elif self._num_threads < self._max_threads:
                self._num_threads += 1
                _Worker(self, f"{self._name}-{self._num_threads}").hand(work)
            else:
                self._backlog.append(work)
        return work

    def shutdown(self) -> None:
        """Take no more work. Threads are daemons: they are not waited for."""
        with self._lock:
            self._closed = True
            for worker in self._idle:
                worker.hand(None)
            self._idle.clear()

    def next_work(self, worker: _Worker) -> bool:
        """Give a worker that is done its next work; False if it is to end."""
        with self._lock:
            if self._backlog:
                worker.hand(self._backlog.popleft())
            elif self._closed:
                return False
            else:
                self._idle.append(worker)
            return True


class _Worker:
    """One thread, asleep until it is handed work."""

    def __init__(self, pool: LifoPool, name: str) -> None:
        self._pool = pool
        self._work: Work | None = None
        self._handed = threading.Lock()
        self._handed.acquire()
        threading.Thread(target=self._loop, name=name, daemon=True).start()

    def hand(self, work: Work | None) -> None:
        self._work = work
        self._handed.release()

    def _loop(self) -> None:
        while True:
            self._handed.acquire()
            work, self._work = self._work, None
            if work is None:
                return
            work.run()
            del work
            if not self._pool.next_work(self):
                return
