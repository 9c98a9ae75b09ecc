"""PASCAL's placement, by cases worked by hand from its Algorithms 1 and 2."""

from math import inf

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.placements.pascal import PascalPlacement
from scheduler_adapters.views import InstanceView, Phase, RequestView
from tests.scheduler_adapters.placements import views

ARRIVAL = RequestView("a", 0, 10.0, 100)
CHANGE = RequestView(
    "a", 0, 1.0, 100, phase=Phase.ANSWERING, generated_tokens=60, last_token_s=10.0
)
"""160 tokens: 10 blocks, and 32 more with a reserve of a quantum."""


def view(instance_id: int, **numbers) -> InstanceView:
    return views.view(instance_id, **{"used_blocks": 10, "now_s": 10.0} | numbers)


@pytest.mark.parametrize(
    ("views", "chosen"),
    [
        ([view(0, used_blocks=9), view(1, used_blocks=8)], 1),
        ([view(0, used_blocks=9), view(1, used_blocks=8, used_host_blocks=2)], 0),
        ([view(0, used_blocks=9), view(1, used_blocks=8, booked_blocks=2)], 0),
        ([view(0, used_blocks=9), view(1, used_blocks=8, waiting_prompt_tokens=17)], 0),
        (
            [
                view(0, waiting_prompt_tokens=40, stored_prompt_tokens=40, used_host_blocks=2),
                view(1, used_blocks=13),
            ],
            0,
        ),
        ([view(0, brought_blocks=8), view(1, used_blocks=17)], 1),
        ([view(2), view(1)], 1),
        # A reader of the second has nothing to read since 9.9 s, or from now on.
        ([view(0, used_blocks=90), view(1, paced_until_s=9.9)], 0),
        ([view(0, used_blocks=90), view(1, paced_until_s=10.0)], 0),
        ([view(0, used_blocks=90), view(1, paced_until_s=10.1)], 1),
        ([view(0, used_blocks=90, paced_until_s=9.0), view(1, paced_until_s=9.9)], 1),
    ],
)
def test_new_requests_go_to_the_least_kv_if_readers_have_tokens(views, chosen):
    assert PascalPlacement().place(ARRIVAL, views) == chosen


@pytest.mark.parametrize(
    ("counts", "chosen"),
    [
        ([(3, 0, inf), (2, 0, inf)], 1),
        ([(2, 0, inf), (2, 0, inf)], 0),
        ([(2, 9, inf), (3, 0, inf)], 0),
        ([(1, 0, 9.0), (2, 0, inf)], 1),
        # Nowhere do readers have tokens: fresh answers count, but not the request's own.
        ([(1, 3, 9.0), (2, 1, 9.0)], 0),  # three each: a tie, for the lowest id
        ([(1, 3, 9.0), (2, 0, 9.0)], 1),
    ],
)
def test_an_answer_goes_where_the_fewest_think(counts, chosen):
    views = [
        view(i, num_thinking=thinking, num_fresh_answering=fresh, paced_until_s=until_s)
        for i, (thinking, fresh, until_s) in enumerate(counts)
    ]
    assert PascalPlacement().at_phase_change(CHANGE, 0, views) == chosen


def test_fresh_answers_may_count_always():
    views = [view(0, num_thinking=1, num_fresh_answering=3), view(1, num_thinking=2)]
    assert PascalPlacement().at_phase_change(CHANGE, 1, views) == 0
    assert PascalPlacement(fresh="always").at_phase_change(CHANGE, 1, views) == 1
    with pytest.raises(ConfigError, match="fresh is 'never'; use one of unpaced, always"):
        PascalPlacement(fresh="never")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("here_used", "there_used", "chosen"),
    [
        (10, 58, 1),  # 42 free at the choice: context and reserve
        (10, 59, 0),
        (68, 59, 0),  # 32 free here, and its own 10
        (69, 59, 1),  # neither has enough
    ],
)
def test_adaptive_migration_stays_where_no_other_has_room(here_used, there_used, chosen):
    views = [
        view(0, num_thinking=5, used_blocks=here_used),
        view(1, num_thinking=0, used_blocks=there_used),
    ]
    assert PascalPlacement().at_phase_change(CHANGE, 0, views) == chosen
    assert PascalPlacement(migration="always").at_phase_change(CHANGE, 0, views) == 1
    assert PascalPlacement(migration="never").at_phase_change(CHANGE, 0, views) == 0


def test_blocks_on_their_way_are_no_room():
    views = [view(0, num_thinking=5), view(1, used_blocks=58, booked_blocks=1)]
    assert PascalPlacement().at_phase_change(CHANGE, 0, views) == 0
