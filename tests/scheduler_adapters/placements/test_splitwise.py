"""Splitwise: both instances of a request, overflow into mixed ones, and their way home."""

import pytest

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
    """With one token, 80: five blocks."""
    return RequestView(request_id, 0, 0.0, prompt_tokens, generated_tokens=1)


def splitwise() -> Splitwise:
    return Splitwise(max_pending_tokens=200)


def queue(instance_id: int, role: str, pending: int) -> InstanceView:
    return view(instance_id, role, prefill_tokens=pending, num_waiting=pending > 0)


def test_fewest_pending_tokens_prefill_and_most_room_decodes():
    views = [queue(0, "prefill", 60), queue(1, "prefill", 50), view(2, "decode", used_blocks=9)]
    views += [view(3, "decode", used_blocks=8), view(4, "both")]
    assert splitwise().place(request(), views) == 1
    assert splitwise().at_prefill_end(request(), 1, views) == 3
    full = [view(0, "prefill"), view(2, "decode", used_blocks=96)]
    assert splitwise().at_prefill_end(request(), 0, full) is None
    assert splitwise().at_prefill_end(request(), 0, [*full, views[4]]) == 4


@pytest.mark.parametrize(
    ("pending", "chosen"),
    [
        ([121, 500, 0], 0),  # 200 with the prompt
        ([122, 500, 0], 2),
        ([122, 500, 121], 2),
        ([122, 500, 500], 0),  # none accepts it: the fewest pending tokens
    ],
)
def test_many_pending_tokens_lead_to_mixed_and_then_to_decode(pending, chosen):
    views = [queue(0, "prefill", pending[0]), queue(1, "prefill", pending[1])]
    views += [queue(2, "both", pending[2]), view(3, "decode"), queue(4, "decode", 1)]
    assert splitwise().place(request(), views) == chosen


def test_an_empty_prompt_instance_takes_a_prompt_of_any_length():
    views = [view(0, "prefill"), view(1, "both"), view(2, "decode")]
    assert splitwise().place(request(prompt_tokens=900), views) == 0


def test_pools_change_at_ticks_and_empty_mixed_instances_go_home():
    views = [queue(0, "prefill", 150), view(1, "prefill", 7, prefilled_blocks=7)]
    views += [view(2, "decode", 90), view(3, "decode", 95, num_answering=1)]
    placement = splitwise()
    # A prefilled request has no place, and an idle prompt instance still accepts prompts.
    assert placement.tick(0.0, views) == [SetRole(instance=1, role="both")]
    views[1] = view(1, "both", 12)
    assert placement.tick(0.05, views) == []
    views[1].used_blocks = 0
    assert placement.tick(0.1, views) == [SetRole(instance=1, role="prefill")]
    full = [queue(0, "prefill", 201), queue(1, "prefill", 201), *views[2:]]
    assert placement.tick(0.15, full) == [SetRole(instance=2, role="both")]


def test_a_mixed_instance_hands_its_prompts_over():
    # Two prompts in one tenth of a second overflow into the mixed instance; all decode in the last.
    run = simulate_cluster(
        make_requests(prompt_tokens=[180] * 4, output_tokens=[5] * 4),
        splitwise(),
        PrefillFirst,
        [Instance(latency=AffineLatency(base_s=0.1), kv_blocks=200)] * 3,
        fabric=Fabric(kv_bytes_per_token=1, bytes_per_s=1e6),
        roles=["prefill", "both", "decode"],
    )
    assert {(move.source, move.destination) for move in run.migrations} == {(0, 2), (1, 2)}
    assert (run.timeline.finished_s > 0).all()
