"""Requests that an engine takes over: new ones, and unfinished ones of another instance."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import count
from math import inf
from typing import NamedTuple

from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import HIDDEN, Requests


class SimulatedRequest(NamedTuple):
    """One request for an instance, with the output length that only the engine reads."""

    request_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    """Output tokens before the end of thinking."""
    score: float | None = None
    user_class: str = ""
    tbt_s: float | None = None
    score_delay_s: float = 0.0
    """Seconds from the arrival until the score is available; inf: never."""
    limits: tuple[float, float] = (0, inf)
    """Least and most output tokens that the request itself allows."""
    client: str = ""
    cached_tokens: int = 0
    quantiles: tuple[tuple[float, float], ...] = ()

    def view(self, number: int) -> RequestView:
        """Return the request as a policy sees it; `number` is its receive number."""
        own = {name: value for name, value in self._asdict().items() if name not in HIDDEN}
        return RequestView(number=number, **own)


def simulated_request(requests: Requests, row: int) -> SimulatedRequest:
    """Return the request at `row`."""
    return SimulatedRequest(**requests.row(row))


def request_views(requests: Requests, first_number: int = 0) -> Iterator[RequestView]:
    """Return the views of waiting requests, numbered from `first_number` on."""
    columns = requests.seen_columns() | {"number": count(first_number)}
    # Their order is that of the first fields of a view: by place they take half the time.
    names = [field.name for field in fields(RequestView)][: len(columns)]
    return map(RequestView, *(columns[name] for name in names))


@dataclass(frozen=True, kw_only=True, slots=True)
class Carried:
    """Progress and KV of an unfinished request that moves from one instance to another.

    `dataclasses.replace(carried, kv_tokens=0)` drops the KV: all tokens are prefilled again.
    """

    available_s: float = 0.0
    """Earliest time in the queue of the next instance: the end of its last step in the old one.
    The duration of a transfer is to be added."""
    kv_tokens: int = 0
    """Tokens with keys and values that move with the request."""
    preemptions: int = 0
    scheduled_s: float | None = None
    """Start of its first step; None before that."""
    token_s: tuple[float, ...] = ()
    """Times of its tokens, in this instance and in earlier ones."""
    queue: tuple[float, ...] | None = None
    """Queue of the policy (`RequestView.enqueued_s`); `queue_entered_s` is its time of entry."""
    queue_entered_s: float = 0.0
    held_blocks: int = 0
    """Blocks still reserved in the old instance, until `Engine.release`."""
    reserved_blocks: int = 0
    """Blocks reserved by `Engine.reserve` in the new instance."""
