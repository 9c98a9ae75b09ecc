"""Phasor: where prompts and decodes go, which instance is defragmented, promoted and recalled."""

from math import inf

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.placement import Move, SetRole
from scheduler_adapters.placements.freeness import PrefillCost
from scheduler_adapters.placements.phasor import Phasor
from scheduler_adapters.views import InstanceView, RequestView
from tests.scheduler_adapters.placements.test_freeness import written
from tests.scheduler_adapters.placements.views import view

COST = PrefillCost(alpha=1.0, beta=10.0, peak_flop_per_s=1000.0, model="m", device="d")
REQUEST = RequestView("a", 0, 0.0, 79, generated_tokens=1)
"""80 tokens: five blocks."""


def phasor(**changes) -> Phasor:
    made = Phasor(**{"cost": COST, "ttft_slo_s": 1.0} | changes)
    made.freeness.waits(160)  # a large request has ten blocks
    return made


def queue(instance_id: int, *lengths: int, **numbers) -> InstanceView:
    squares = sum(length**2 for length in lengths)
    settings = {"prefill_tokens": sum(lengths), "num_waiting": len(lengths)}
    return view(instance_id, "prefill", prefill_squares=squares, **settings | numbers)


def test_a_prompt_goes_where_the_queue_is_cheapest_not_shortest():
    # One long prompt costs more than three short ones with as many tokens.
    instances = [queue(0, 30), queue(1, 10, 10, 10), queue(2, 40), view(3, "decode")]
    assert phasor().place(REQUEST, instances) == 1
    assert phasor(routing="queue-length").place(REQUEST, instances) == 0


def test_of_equally_free_ones_fewest_tokens_win_then_a_least_id():
    # Without the linear term 3, 4 and 5 cost the same.
    flat = PrefillCost(alpha=1.0, beta=0.0, peak_flop_per_s=1000.0, model="m", device="d")
    assert phasor(cost=flat).place(REQUEST, [queue(0, 3, 4), queue(1, 5), queue(2, 5)]) == 1


def test_the_freest_decode_instance_with_blocks_enough_is_taken():
    instances = [view(0, "prefill"), view(1, "decode", used_blocks=50)]
    assert phasor().at_prefill_end(REQUEST, 0, [*instances, view(2, "decode")]) == 2
    busy = view(2, "decode", used_blocks=40, num_answering=9)
    assert phasor().at_prefill_end(REQUEST, 0, [*instances, busy]) == 2
    assert phasor(routing="queue-length").at_prefill_end(REQUEST, 0, [*instances, busy]) == 1
    # Ten blocks are free in each, of which the second has promised six.
    full = [view(1, "decode", used_blocks=90), view(2, "decode", waiting_prompt_tokens=1536)]
    assert phasor().at_prefill_end(REQUEST, 0, full) == 1
    waits = phasor(output_tokens=80)
    assert waits.at_prefill_end(REQUEST, 0, full[1:]) is None
    assert waits.freeness.large_blocks(full[0]) == 10  # while it waits, it is what is large


def decoding(instance_id: int, used_blocks: int, **numbers) -> InstanceView:
    own = [RequestView(f"{instance_id}-{n}", n, 0.0, 16 * n + 1) for n in (3, 1, 2)]
    return view(instance_id, "decode", used_blocks=used_blocks, decodes=lambda: own, **numbers)


def test_the_shortest_decode_leaves_a_fragmented_instance():
    # 3 of 10 blocks that a large request needs: unusable, and Phi is 0.
    crowded, free = decoding(1, 97), decoding(2, 40)
    assert phasor().tick(0.0, [crowded, free]) == [Move(request_id="1-1", to=2, how="live")]
    # Two free blocks are less than a quarter of ten; sixty in use are not crowded.
    assert phasor().tick(0.0, [decoding(1, 98), free]) == []
    assert phasor().tick(0.0, [decoding(1, 67), free]) == []
    assert phasor(theta_frag=-inf).tick(0.0, [crowded, free]) == []
    # The other one must stay above the threshold, and one moves at a time.
    assert phasor().tick(0.0, [crowded, decoding(2, 82)]) == []
    assert phasor().tick(0.0, [crowded, decoding(2, 40, num_migrating=1)]) == []
    assert phasor().tick(0.0, [decoding(1, 97, num_migrating=1), free]) == []
    moves = phasor().tick(0.0, [decoding(0, 96), crowded, free])
    assert [move.request_id for move in moves] == ["0-1"]  # then the free one is busy


def pools(prefill_tokens: int, used_blocks: int, *elastic: InstanceView) -> list[InstanceView]:
    """Two instances in each pool; beta is 10 of 1000, so ten tokens of queue are 0.1."""
    prefills = [view(i, "prefill", prefill_tokens=prefill_tokens) for i in (0, 1)]
    decodes = [view(i, "decode", used_blocks=used_blocks) for i in (2, 3)]
    return [*prefills, *decodes, *(elastic or (view(4, "both"), view(5, "both")))]


@pytest.mark.parametrize(
    ("tokens", "used", "role"),
    [
        (0, 0, None),
        (37, 0, None),  # .63 of 1
        (39, 0, "prefill"),
        (0, 30, None),
        (0, 40, "decode"),
        (200, 40, "prefill"),  # below zero
        (200, 100, "prefill"),  # zero there
        (390, 40, "prefill"),
    ],
)
def test_the_pool_that_is_much_less_free_gets_an_instance(tokens, used, role):
    changes = phasor().tick(0.0, pools(tokens, used))
    assert changes == ([SetRole(instance=4, role=role)] if role else [])


def test_a_prefill_without_a_place_makes_the_decode_pool_short():
    views = pools(200, 40)
    views[0].prefilled_blocks = 1
    assert phasor().tick(0.0, views) == [SetRole(instance=4, role="decode")]


def test_a_promoted_instance_keeps_its_role_for_a_cool_down():
    placement = phasor(cool_down_ticks=4)  # 0.2 s
    short = pools(50, 0)
    assert placement.tick(0.0, short) == [SetRole(instance=4, role="prefill")]
    short[4] = view(4, "prefill", prefill_tokens=50)
    assert placement.tick(0.05, short) == [SetRole(instance=5, role="prefill")]
    # Nothing is short any more: the first may go, the second has not been there long enough.
    calm = pools(0, 0, view(4, "prefill", used_blocks=1), view(5, "prefill", used_blocks=1))
    assert placement.tick(0.15, calm) == []
    assert placement.leaving == set()
    assert placement.tick(0.2, calm) == []
    assert placement.leaving == {4}
    assert placement.place(REQUEST, [calm[4], calm[5]]) == 5
    calm[4].used_blocks = 0
    assert placement.tick(0.25, calm) == [SetRole(instance=4, role="both")]
    assert placement.leaving == {5}
    # It is short again before the second is idle: it stays.
    short = pools(50, 0, view(4, "both"), view(5, "prefill", used_blocks=1))
    assert placement.tick(1.0, short) == []
    assert placement.leaving == set()


def test_requests_leave_a_recalled_decode_instance():
    placement = phasor(cool_down_ticks=1)
    assert placement.tick(0.0, pools(0, 50)) == [SetRole(instance=4, role="decode")]
    recalled = decoding(4, 20, num_answering=3)
    placement.tick(1.0, pools(0, 10, recalled))
    assert placement.leaving == {4}
    assert Move(request_id="4-1", to=2, how="live") in placement.tick(1.05, pools(0, 10, recalled))
    assert placement.at_prefill_end(REQUEST, 0, pools(0, 10, recalled)) == 2
    busy = decoding(4, 20, num_answering=3, num_migrating=1)
    assert placement.tick(1.1, pools(0, 10, busy)) == []
    assert placement.tick(1.15, pools(0, 10, view(4, "decode"))) == [
        SetRole(instance=4, role="both")
    ]


def test_two_recalled_instances_share_no_destination_at_a_time():
    placement = phasor(cool_down_ticks=1)
    placement.promoted, placement.leaving = {4: 0.0, 5: 0.0}, {4, 5}
    leaving = [decoding(number, 20, num_answering=3) for number in (4, 5)]
    views = [view(0, "prefill"), view(1, "decode", used_blocks=10), *leaving]
    moves = [one for one in placement.tick(0.0, views) if isinstance(one, Move)]
    assert [move.to for move in moves] == [1]


@pytest.mark.parametrize("start", range(0, 2000, 7))
def test_a_cool_down_lasts_as_many_ticks_as_set_from_anywhere(start):
    placement = phasor(cool_down_ticks=20)
    first, second = (placement.tick_s * (start + number) for number in (0, 20))
    assert len(placement.tick(first, pools(50, 0, view(4, "both")))) == 1
    calm = pools(0, 0, view(4, "prefill", used_blocks=1))
    for at_s, leaving in ((second - placement.tick_s, set()), (second, {4})):
        placement.tick(at_s, calm)
        assert placement.leaving == leaving


def test_elastic_instances_stand_by_or_serve_both_pools():
    views = pools(39, 35)
    assert phasor().place(REQUEST, views) == 0
    assert phasor(idle="mixed").place(REQUEST, views) == 4
    assert phasor(idle="mixed").at_prefill_end(REQUEST, 0, views) == 4
    alone = [view(7, "both")]
    assert phasor().place(REQUEST, alone) == phasor().at_prefill_end(REQUEST, 7, alone) == 7


def test_a_mixed_instance_is_as_free_as_its_less_free_part_is():
    mixed = phasor(idle="mixed")
    # Prompts of 20 tokens leave .4; a hundred blocks, 70 of them used, leave .3.
    busy = view(2, "both", used_blocks=70, num_answering=9)
    assert mixed.place(REQUEST, [queue(0, 20), view(1, "decode"), busy]) == 0
    assert mixed.place(REQUEST, [queue(0, 30), view(1, "decode"), busy]) == 2
    prefilling = view(2, "both", prefill_tokens=20, prefill_squares=400, num_prefilling=1)
    decodes = [view(0, "prefill"), view(1, "decode", used_blocks=50), prefilling]
    assert mixed.at_prefill_end(REQUEST, 0, decodes) == 1
    assert mixed.at_prefill_end(REQUEST, 0, [*decodes[:1], decoding(1, 70), prefilling]) == 2


def test_a_cost_file_names_the_model_and_device_it_is_for(tmp_path):
    path = written(tmp_path, r2=0.5)
    with pytest.raises(ConfigError, match=r"R\^2 is 0.5"):
        Phasor(cost=path)
    assert Phasor(cost=path, force_cost=True).made_for == ("m", "d")
    assert Phasor().made_for == (None, None)
