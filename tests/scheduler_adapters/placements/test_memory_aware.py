"""Memory-aware placement."""

from __future__ import annotations

from scheduler_adapters.placements.memory_aware import MemoryAware
from scheduler_adapters.views import InstanceView, RequestView

REQUEST = RequestView("a", 0, 0.0, 10)


def view(instance_id: int, used: int, total: int = 20, **more: int) -> InstanceView:
    return InstanceView(
        instance_id=instance_id,
        now_s=0.0,
        used_blocks=used,
        total_blocks=total,
        block_tokens=16,
        **more,
    )


def test_most_free_blocks_are_chosen_whoever_waits_then_the_lowest_id():
    place = MemoryAware().place
    assert place(REQUEST, [view(0, 5), view(1, 9, total=30)]) == 1
    assert place(REQUEST, [view(2, 5, waiting_prompt_tokens=999), view(3, 5)]) == 2
    assert place(REQUEST, [view(2, 5, booked_blocks=1), view(3, 5)]) == 3
