"""Requests as an engine receives them, until the step in which each joins the queue."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import count
from math import inf

from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import Requests


def request_views(requests: Requests, first_number: int = 0) -> Iterator[RequestView]:
    """Return the views of waiting requests, numbered from `first_number` on."""
    columns = requests.seen_columns() | {"number": count(first_number)}
    # Their order is that of the first fields of a view: by place they take half the time.
    names = [field.name for field in fields(RequestView)][: len(columns)]
    return map(RequestView, *(columns[name] for name in names))


def request_states(requests: Requests, first_number: int = 0) -> Iterator[RequestState]:
    """Return the requests, to be submitted in this order."""
    lengths = requests.output_tokens.tolist(), requests.reasoning_tokens.tolist()
    views = request_views(requests, first_number)
    return map(RequestState, views, *lengths, requests.score_delay_s.tolist())


def request_state(requests: Requests, row: int) -> RequestState:
    """Return the request at `row`, numbered by it."""
    return next(request_states(requests.take(slice(row, row + 1)), row))


class Arrivals:
    """Requests by (time of joining, row).

    With `async_scheduling`, vLLM's default, a step is planned when the step before it starts, so
    that the GPU is never idle. A request that arrives during a step then runs in the next but one.
    """

    def __init__(self, *, async_scheduling: bool) -> None:
        self.async_scheduling = async_scheduling
        self.pending: deque[RequestState] = deque()
        self.next_s = inf
        """Time of the first one; inf without any."""
        self.busy_since_s = 0.0
        """End of the last idle time."""

    def add(self, requests: Iterable[RequestState]) -> None:
        """Add requests, in most cases at the end."""
        pending = self.pending
        for request in requests:
            at = len(pending)
            while at and pending[at - 1].joins_s > request.joins_s:
                at -= 1
            pending.insert(at, request)
        self.next_s = pending[0].joins_s if pending else inf

    def remove(self, request: RequestState) -> None:
        """Remove a request that is withdrawn before it joins."""
        self.pending.remove(request)
        self.next_s = self.pending[0].joins_s if self.pending else inf

    def take(self, until_s: float) -> list[RequestState]:
        """Remove and return the requests that join by `until_s`."""
        taken = []
        while self.next_s <= until_s:
            taken.append(self.pending.popleft())
            self.next_s = self.pending[0].joins_s if self.pending else inf
        return taken

    def planned_s(self, now_s: float, step_ends_s: Sequence[float], *, is_idle: bool) -> float:
        """Return when the step that starts now was planned: requests that join by then are in it.

        That is the start of the step that ended last, and now after an idle time.
        """
        if not self.async_scheduling:
            return now_s
        if is_idle:
            self.busy_since_s = now_s
            return now_s
        return max(step_ends_s[-2] if len(step_ends_s) > 1 else 0.0, self.busy_since_s)
