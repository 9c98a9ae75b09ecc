"""Requests that an engine takes over: new ones, and unfinished ones of another instance."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import NamedTuple

from scheduler_adapters.timeline.columns import none_for_nan
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import Requests


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
        own = {name: value for name, value in self._asdict().items() if name not in _HIDDEN}
        return RequestView(number=number, **own)


_HIDDEN = frozenset({"output_tokens", "reasoning_tokens", "score_delay_s"})


def simulated_request(requests: Requests, row: int) -> SimulatedRequest:
    """Return the request at `row`."""
    score, tbt_s = requests.score.item(row), requests.tbt_s.item(row)
    return SimulatedRequest(
        requests.request_id.item(row),
        requests.arrival_s.item(row),
        requests.prompt_tokens.item(row),
        requests.output_tokens.item(row),
        requests.reasoning_tokens.item(row),
        None if score != score else score,
        requests.user_class.item(row),
        None if tbt_s != tbt_s else tbt_s,
        requests.score_delay_s.item(row),
        (requests.min_tokens.item(row), requests.max_tokens.item(row)),
        requests.client.item(row),
        requests.cached_tokens.item(row),
        requests.quantiles[row],
    )


def request_views(requests: Requests, first_number: int = 0) -> Iterator[RequestView]:
    """Return the views of waiting requests, numbered from `first_number` on."""
    views = map(
        RequestView,
        requests.request_id.tolist(),
        count(first_number),
        requests.arrival_s.tolist(),
        requests.prompt_tokens.tolist(),
        none_for_nan(requests.score),
        requests.user_class.tolist(),
        none_for_nan(requests.tbt_s),
        requests.client.tolist(),
        requests.quantiles.tolist(),
    )
    cached = requests.cached_tokens
    if not (requests.has_limits or cached.any()):
        return views
    limits = zip(requests.min_tokens.tolist(), requests.max_tokens.tolist(), strict=True)
    return map(_bounded, views, limits, cached.tolist())


def _bounded(view: RequestView, limits: tuple[float, float], cached: int) -> RequestView:
    view.limits, view.cached_tokens = limits, cached
    return view


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
