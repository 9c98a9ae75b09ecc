"""Events of requests as the observers of an engine hear of them."""

from typing import Any, ClassVar

import pytest

from scheduler_adapters.planner.engine_events import ends_thinking
from scheduler_adapters.planner.ranked_queue import RankedRequest
from scheduler_adapters.planner.request_tracker import RequestTracker
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import Phase, RequestView
from tests.scheduler_adapters.planner.waiting import still_clock, track


class Hearing(EngineObserver):
    """A list of the reported events."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, float]] = []

    def queued(self, request: RequestView, now_s: float) -> None:
        assert request.previous is not None
        self.heard.append(("queued", now_s))

    def evicted(self, request: RequestView, now_s: float) -> None:
        self.heard.append((f"evicted {request.generated_tokens} {request.phase.name}", now_s))


def test_observers_hear_of_arrivals_and_evictions():
    clock, hearing = still_clock(), Hearing()
    tracker = RequestTracker(pars(), clock, [hearing])
    tracked = track(tracker, 3.0)
    tracked.view.phase = Phase.ANSWERING
    tracker.requeue(tracked, generated_tokens=2, preemptions=1)
    assert hearing.heard == [("queued", 1000.0), ("evicted 2 WAITING", 1000.0)]
    assert tracked.view.preemptions == 1


@pytest.mark.parametrize(
    ("output", "num_new", "ends"),
    [
        ([1, 5, 7], 1, True),
        ([1, 5, 7, 3], 1, False),
        ([1, 5, 7, 3], 2, True),
        ([5, 7], 1, True),
        ([7], 1, False),
        ([1, 5, 5, 7], 1, True),
        ([5, 7, 5], 1, False),
        ([], 0, False),
    ],
)
def test_a_marker_may_be_cut_by_the_end_of_a_step(output, num_new, ends):
    assert ends_thinking(output, num_new, (5, 7)) == ends


@pytest.mark.parametrize(
    ("prompt", "is_over"),
    [
        ([1, 4, 5, 7], True),
        ([1, 4, 8, 5, 7, 8, 8, 8, 8], True),
        ([1, 4, 8, 5, 7, 8, 8, 8, 8, 8], False),
        ([1, 5, 7, 2, 2, 2, 2, 4], False),  # the thought of an earlier turn
        ([1, 4, 8], False),
        ([7], False),
        ([], False),
    ],
)
def test_a_thought_that_ends_in_the_prompt_is_over(prompt, is_over):
    class Thoughts(EngineObserver):
        told: ClassVar[list[str]] = []

        def admitted(self, request: RequestView, now_s: float) -> None:
            self.told.append("admitted")

        def thinking_ended(self, request: RequestView, now_s: float) -> None:
            self.told.append("thinking ended")

    def tracked(**settings: Any) -> RankedRequest:
        tracker = RequestTracker(pars(), still_clock(), [Thoughts()], **settings)
        tracked = track(tracker, prompt=prompt)
        tracker.events.admitted(tracked, 1.0)
        return tracked

    assert not tracked().thinking_over
    Thoughts.told.clear()
    assert tracked(think_end=(5, 7)).thinking_over == is_over
    assert Thoughts.told == ["admitted", *["thinking ended"] * is_over]
