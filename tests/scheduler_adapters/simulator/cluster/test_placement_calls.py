"""Calls of a placement: refused answers, late scores, and the choice of the shortest queue."""

import pytest

from lengthwise.errors import InvalidDecision
from scheduler_adapters.placement import Placement
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.cluster import simulate_cluster
from scheduler_adapters.simulator.cluster.placement_calls import QueueLength
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.views import InstanceView, RequestView
from scheduler_adapters.workload.requests import make_requests

INSTANCE = Instance(latency=AffineLatency(base_s=0.01), kv_blocks=60)


class Sends(Placement):
    name = "sends"

    def __init__(self, first: object, then: object = 0) -> None:
        self.first, self.then = first, then
        self.scores: list[float | None] = []

    def place(self, request, instances):
        self.scores.append(request.score)
        return self.first

    def at_phase_change(self, request, instance, instances):
        return self.then


@pytest.mark.parametrize("chosen", [-1, 2, None, "0"])
def test_an_instance_that_is_not_there_is_refused(chosen):
    requests = make_requests(prompt_tokens=[5], output_tokens=[5], reasoning_tokens=[2])
    for placement in (Sends(chosen), Sends(0, chosen)):
        with pytest.raises(InvalidDecision, match="placement 'sends' sent request '0' to instance"):
            simulate_cluster(requests, placement, FCFS, [INSTANCE] * 2)


def test_a_late_score_is_not_seen_at_the_arrival():
    requests = make_requests(
        prompt_tokens=[5, 5], output_tokens=[2, 2], scores=[3.0, 4.0], score_s=[0.0, 1.0]
    )
    placement = Sends(0)
    simulate_cluster(requests, placement, FCFS, [INSTANCE])
    assert placement.scores == [3.0, None]


def views(*pools: tuple[str, int]) -> list[InstanceView]:
    """Return instances of these roles with so many waiting requests."""
    return [
        InstanceView(
            instance_id=number,
            now_s=0.0,
            used_blocks=0,
            total_blocks=9,
            block_tokens=16,
            num_waiting=waiting,
            role=role,
        )
        for number, (role, waiting) in enumerate(pools)
    ]


def test_queue_lengths_decide_within_the_pool():
    pools = views(("prefill", 5), ("decode", 1), ("decode", 0))
    request = RequestView("a", 0, 0.0, 5)
    assert QueueLength().place(request, pools) == 0
    assert QueueLength().at_prefill_end(request, 0, pools) == 2
    assert QueueLength().place(request, pools[1:]) == 2
    # Only prefill instances hand over.
    pools = views(("prefill", 0), ("decode", 1), ("decode", 3))
    assert QueueLength().at_prefill_end(request, 0, pools) == 1
    assert QueueLength().at_prefill_end(request, 2, pools) == 2
