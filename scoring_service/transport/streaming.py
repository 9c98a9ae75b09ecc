"""Many prompts on one stream: read ahead up to a bound, answer in the order of completion."""

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Generic, TypeVar

from lengthwise.errors import ScoringError

Request = TypeVar("Request")
Response = TypeVar("Response")


class UnorderedMap(Generic[Request, Response]):
    """`answer` applied to each request of an iterator, results as they come.

    Args:
        answer: must not raise; runs on `workers`.
        workers: where one task reads the requests and others answer them.
        max_unanswered: requests read whose answers are not fetched, at most: the client must wait.
    """

    def __init__(
        self, answer: Callable[[Request], Response], workers: Executor, max_unanswered: int
    ) -> None:
        self._answer = answer
        self._workers = workers
        self._places = threading.Semaphore(max_unanswered)
        self._results: queue.SimpleQueue[Response | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._unanswered = 1  # the reader itself counts until it has read everything
        self._closed = False
        self.error: ScoringError | None = None
        """What ended the requests before their end, if it was the client's fault."""

    def run(self, requests: Iterator[Request]) -> Iterator[Response]:
        """The results. Ends when all requests are read and answered, or after `close`."""
        self._workers.submit(self._read, requests)
        while True:
            result = self._results.get()
            if result is None:
                return
            yield result
            # Only now: answers that the client does not fetch must not pile up.
            self._places.release()

    def end(self, error: ScoringError) -> None:
        """Read and answer no more, and say why."""
        self.error = error
        self.close()

    def close(self) -> None:
        """Read and answer no more: the client is gone."""
        self._closed = True
        self._places.release()
        self._results.put(None)

    def _read(self, requests: Iterator[Request]) -> None:
        try:
            for request in requests:
                self._places.acquire()
                if self._closed:
                    return
                with self._lock:
                    self._unanswered += 1
                self._workers.submit(self._answer_one, request)
        except ScoringError as error:
            self.error = error
        except Exception:
            # gRPC ends a broken stream's iterator this way; the stream's own status tells why.
            self.close()
        finally:
            self._finish_one()

    def _answer_one(self, request: Request) -> None:
        try:
            if not self._closed:
                self._results.put(self._answer(request))
        finally:
            self._finish_one()

    def _finish_one(self) -> None:
        with self._lock:
            self._unanswered -= 1
            if self._unanswered == 0:
                self._results.put(None)
