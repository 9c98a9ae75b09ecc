"""Requests that wait under a tracker, in an engine that keeps nothing else of them."""

from dataclasses import dataclass
from typing import Any

from scheduler_adapters.planner.ranked_queue import RankedQueue, RankedRequest
from scheduler_adapters.planner.request_tracker import RequestTracker
from scheduler_adapters.views import Rank, RequestView
from tests.scheduler_adapters.engines.decisions import Clock

START_S = 1000.0


def still_clock() -> Clock:
    """A clock that stands still until it is set."""
    return Clock(START_S)


@dataclass(eq=False)
class Waiting:
    """A waiting request."""

    lengthwise: RankedRequest


def waiting(number: int, rank: Rank) -> Waiting:
    view = RequestView(request_id=str(number), number=number, arrival_s=0.0, prompt_tokens=1)
    return Waiting(RankedRequest(view, rank))


def number_of(item: Waiting) -> int:
    return item.lengthwise.view.number


def track(
    tracker: RequestTracker, score: float | None = None, *, age_s: float = 0.0, **more: Any
) -> RankedRequest:
    carried = None if score is None else {"lengthwise_score": score}
    return tracker.track("r", age_s=age_s, prompt_tokens=3, **{"carried": carried} | more)


def fill(queue: RankedQueue[Waiting], *requests: RankedRequest) -> None:
    for tracked in requests:
        queue.add(Waiting(tracked))


def in_order(queue: RankedQueue[Waiting]) -> list[RankedRequest]:
    return [item.lengthwise for item in queue]
