"""Splitwise: both instances of a request, overflow into mixed ones, and their way home."""

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.placement import SetRole
from scheduler_adapters.placements.splitwise import Splitwise
from scheduler_adapters.policies.prefill_first import PrefillFirst
from scheduler_adapters.simulator.cluster import simulate_cluster
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.views import InstanceView, RequestView
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.placements.views import view


def request(request_id: str = "a", prompt_tokens: int = 79) -> RequestView:
    """With one token, 80: five blocks; and with 81 more, ten."""
    return RequestView(request_id, 0, 0.0, prompt_tokens, generated_tokens=1)


def splitwise() -> Splitwise:
    return Splitwise(max_pending_tokens=200, output_tokens=81)


def queue(instance_id: int, role: str, pending: int) -> InstanceView:
    return view(instance_id, role, prefill_tokens=pending, num_waiting=pending > 0)


def test_a_prompt_goes_to_the_fewest_pending_tokens_and_decodes_where_most_is_free():
    views = [queue(0, "prefill", 60), queue(1, "prefill", 50), view(2, "decode", used_blocks=9)]
    views += [view(3, "decode", used_blocks=8), view(4, "both")]
    placement = splitwise()
    assert placement.place(request(), views) == 1
    assert placement.at_prefill_end(request(), 1, views) == 3
    # The next one counts what the first is to need: ten blocks at 3.
    assert placement.place(request("b"), views) == 1
    assert placement.place(request("c"), views) == 1
    assert placement.at_prefill_end(request("c"), 1, views) == 2
    assert placement.at_prefill_end(request("b"), 1, views) == 3
    # What has lost its KV stays where it is prefilled anew; what others placed is handed over.
    assert placement.at_prefill_end(request("b"), 3, views) == 3
    assert placement.at_prefill_end(request("d"), 0, views) == 3
    full = [view(0, "prefill"), view(2, "decode", used_blocks=99)]
    assert placement.at_prefill_end(request("d"), 0, full) is None
    assert not placement.assigned
    assert not any(placement.assigned_blocks.values())


@pytest.mark.parametrize(
    ("pending", "chosen"),
    [
        ([121, 500, 0], 0),  # 200 with the prompt
        ([122, 500, 0], 2),
        ([122, 500, 121], 2),
        ([122, 500, 122], 3),  # a decode instance becomes mixed
    ],
)
def test_too_many_pending_tokens_send_a_prompt_to_mixed_and_then_to_decode(pending, chosen):
    views = [queue(0, "prefill", pending[0]), queue(1, "prefill", pending[1])]
    views += [queue(2, "both", pending[2]), view(3, "decode"), queue(4, "decode", 1)]
    placement = splitwise()
    assert placement.place(request(), views) == chosen
    assert placement.mixed == ({3} if chosen == 3 else set())


def test_an_empty_prompt_instance_takes_a_prompt_of_any_length():
    views = [view(0, "prefill"), view(1, "both"), view(2, "decode")]
    assert splitwise().place(request(prompt_tokens=900), views) == 0


def test_without_room_for_the_whole_request_it_decodes_in_mixed_and_then_in_prefill():
    full = {"used_blocks": 91}
    views = [
        view(0, "prefill", used_blocks=7),
        view(1, "prefill", 3, prefill_tokens=1, num_waiting=1),
    ]
    views += [view(2, "decode", **full), view(3, "both", used_blocks=90)]
    placement = splitwise()
    assert placement.place(request(), views) == 0
    assert placement.at_prefill_end(request(), 0, views) == 3
    views[3] = view(3, "both", **full)
    assert placement.place(request("b"), views) == 0
    assert placement.mixed == {1}
    # It shows at the next tick, and ends when nothing is left there or on its way.
    assert placement.tick(0.0, views) == [SetRole(instance=1, role="both")]
    views[1] = view(1, "both")
    assert placement.tick(0.05, views) == []
    assert placement.at_prefill_end(request("b"), 0, views) == 1
    assert placement.tick(0.1, views) == [SetRole(instance=1, role="prefill")]


def test_a_token_instance_that_has_filled_up_is_replaced_or_waited_for():
    views = [view(0, "prefill"), view(1, "decode"), view(2, "decode", used_blocks=10)]
    placement = splitwise()
    assert placement.place(request(), views) == 0
    views[1].used_blocks = 91
    assert placement.at_prefill_end(request(), 0, views) == 2
    assert placement.place(request("b"), views) == 0
    views[2].used_blocks = 91
    assert placement.at_prefill_end(request("b"), 0, views) is None
    views[2].used_blocks = 90
    assert placement.at_prefill_end(request("b"), 0, views) == 2


def test_instances_that_die_are_replaced_and_hold_nothing_any_more():
    views = [view(0, "prefill"), view(1, "decode"), view(2, "decode", used_blocks=10)]
    placement = splitwise()
    assert placement.place(request(), views) == 0
    assert placement.at_prefill_end(request(), 0, [views[0], views[2]]) == 2
    assert placement.place(request("b"), views) == 0
    assert placement.place(request("b"), [view(3, "prefill"), *views[1:]]) == 3
    assert placement.assigned_blocks[1] == 10


def test_where_neither_pool_accepts_both_phases_run_on_the_fewest_pending_tokens():
    views = [
        view(0, "both", 99, prefill_tokens=300, num_waiting=1),
        view(1, "both", 99, prefill_tokens=299, num_waiting=1),
    ]
    placement = splitwise()
    assert placement.place(request(), views) == 1
    assert placement.at_prefill_end(request(), 1, views) == 1


def test_a_request_with_one_token_does_not_keep_an_instance_mixed():
    views = [queue(0, "prefill", 300), view(1, "decode")]
    placement = splitwise()
    assert placement.place(request(), views) == 1
    assert placement.mixed == {1}
    placement.tick(0.0, views)  # it had one token, and is gone
    assert placement.mixed == set()
    assert placement.assigned_blocks[1] == 0


def test_a_mixed_instance_hands_its_prompts_over():
    # Two prompts in one tenth of a second overflow into the mixed instance; all decode in the last.
    requests = make_requests(prompt_tokens=[180] * 4, output_tokens=[5] * 4)
    run = simulate_cluster(
        requests,
        splitwise(),
        PrefillFirst,
        [Instance(latency=AffineLatency(base_s=0.1), kv_blocks=200)] * 3,
        fabric=Fabric(kv_bytes_per_token=1, bytes_per_s=1e6),
        roles=["prefill", "both", "decode"],
    )
    assert [(move.source, move.destination) for move in run.migrations][:2] == [(0, 2), (1, 2)]
    assert sorted(move.source for move in run.migrations)[0] == 0
    assert (run.timeline.finished_s > 0).all()


@pytest.mark.parametrize("wrong", [{"max_pending_tokens": 0}, {"output_tokens": 0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Splitwise(**wrong)
