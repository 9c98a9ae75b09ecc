"""DistServe: two pools, and requests that wait with their KV until a decode instance has room."""

import pytest

from scheduler_adapters.placements.distserve import DistServe
from scheduler_adapters.views import RequestView
from tests.scheduler_adapters.placements.views import view

REQUEST = RequestView("a", 0, 0.0, 79, generated_tokens=1)
"""80 tokens: five blocks."""


def test_a_prompt_goes_to_the_prefill_instance_with_fewest():
    views = [*(view(i, "prefill", num_waiting=2 - i) for i in (0, 1)), view(2, "decode")]
    assert DistServe().place(REQUEST, views) == 1


@pytest.mark.parametrize(
    ("views", "chosen"),
    [
        ([view(1, "decode", 10, num_answering=2), view(2, "decode", 10, num_answering=1)], 2),
        ([view(1, "decode", used_blocks=95), view(2, "decode", 10, num_answering=9)], 1),
        ([view(1, "decode", used_blocks=96), view(2, "decode", 10, num_answering=9)], 2),
        ([view(1, "decode", used_blocks=96)], None),
        ([view(1, "decode", 10, waiting_prompt_tokens=79)], 1),
        ([view(1, "decode", 10, waiting_prompt_tokens=80)], None),
        ([view(1, "decode", 10, booked_blocks=5)], None),
        ([view(1, "prefill", 10), view(2, "both", 10)], 2),
    ],
)
def test_a_decode_instance_pulls_what_fits_while_few_wait_there(views, chosen):
    assert DistServe().at_prefill_end(REQUEST, 0, [view(0, "prefill"), *views]) == chosen


def test_where_a_pool_has_died_the_other_serves_or_requests_wait():
    assert DistServe().place(REQUEST, [view(0, "decode")]) == 0
    assert DistServe().at_prefill_end(REQUEST, 0, [view(0, "prefill")]) is None
