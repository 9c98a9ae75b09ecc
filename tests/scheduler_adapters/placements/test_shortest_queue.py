"""Join the shortest queue."""

from __future__ import annotations

from scheduler_adapters.placements.shortest_queue import ShortestQueue
from scheduler_adapters.views import InstanceView, RequestView

REQUEST = RequestView("a", 0, 0.0, 10)


def view(instance_id: int, waiting: int, answering: int) -> InstanceView:
    return InstanceView(
        instance_id=instance_id,
        now_s=0.0,
        used_blocks=0,
        total_blocks=9,
        block_tokens=16,
        num_waiting=waiting,
        num_answering=answering,
    )


def test_the_fewest_requests_are_chosen_then_the_lowest_id():
    views = [view(3, 2, 2), view(2, 1, 3), view(1, 3, 0)]
    assert ShortestQueue().place(REQUEST, views) == 1
    assert ShortestQueue().place(REQUEST, views[:2]) == 2
