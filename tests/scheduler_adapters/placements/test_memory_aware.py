"""Memory-aware placement."""

from scheduler_adapters.placements.memory_aware import MemoryAware, MemoryAwarePools
from scheduler_adapters.views import RequestView
from tests.scheduler_adapters.placements.views import view

REQUEST = RequestView("a", 0, 0.0, 10)


def test_most_free_blocks_are_chosen_whoever_waits_then_the_lowest_id():
    place = MemoryAware().place
    assert (
        place(REQUEST, [view(0, "both", 5, total_blocks=20), view(1, "both", 9, total_blocks=30)])
        == 1
    )
    assert place(REQUEST, [view(2, "both", 5, waiting_prompt_tokens=999), view(3, "both", 5)]) == 2
    assert place(REQUEST, [view(2, "both", 5, booked_blocks=1), view(3, "both", 5)]) == 3


def test_in_pools_prompts_and_decodes_each_go_where_most_is_free():
    views = [view(0, "prefill", 9), view(1, "prefill", 8), view(2, "decode", 5), view(3, "both", 6)]
    placement, request = MemoryAwarePools(), RequestView("a", 0, 0.0, 79, generated_tokens=1)
    assert placement.place(request, views) == 3
    assert placement.place(request, views[:3]) == 1
    assert placement.at_prefill_end(request, 1, views) == 2
    full = [view(2, "decode", 95), view(4, "decode", 96)]
    assert placement.at_prefill_end(request, 1, full) == 2
    assert placement.at_prefill_end(request, 1, full[1:]) is None


def test_of_decode_instances_only_those_with_room_are_looked_at():
    views = [
        view(1, "decode", 50, waiting_prompt_tokens=800),  # all its blocks claimed
        view(2, "decode", 60),
    ]
    long = RequestView("a", 0, 0.0, 175, generated_tokens=1)
    assert MemoryAwarePools().at_prefill_end(long, 0, views) == 2
    assert MemoryAwarePools().at_prefill_end(long, 0, views[:1]) is None
