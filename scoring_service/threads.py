"""A thread pool that gives work to the thread that was busy last.

The standard pool passes work round among all its threads. Here the same few stay in use, and with
them their stacks, allocator caches and the processor's caches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_Work = tuple["Future[Any]", Callable[[], Any]]


class LifoPool(Executor):
    """At most `max_threads` daemon threads, started when needed; work beyond them queues."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._lock = threading.Lock()
        self._num_threads = 0
        self._idle: list[_Worker] = []
        self._backlog: deque[_Work] = deque()
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` on a thread of the pool. Raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        work = (future, lambda: fn(*args, **kwargs))
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
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
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
        self._work: _Work | None = None
        self._handed = threading.Lock()
        self._handed.acquire()
        threading.Thread(target=self._loop, name=name, daemon=True).start()

    def hand(self, work: _Work | None) -> None:
        self._work = work
        self._handed.release()

    def _loop(self) -> None:
        while True:
            self._handed.acquire()
            if self._work is None:
                return
            _run(*self._work)
            self._work = None
            if not self._pool.next_work(self):
                return


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
