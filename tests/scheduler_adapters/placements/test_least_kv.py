"""Least-KV placement."""

import pytest

from scheduler_adapters.placements.least_kv import LeastKv
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.simulated_request import simulated_requests
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.views import InstanceView, RequestView
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.placements import views

REQUEST = RequestView("a", 0, 0.0, 10)


def view(number: int, used: int, waiting_tokens: int = 0, **more: int) -> InstanceView:
    return views.view(number, used_blocks=used, waiting_prompt_tokens=waiting_tokens, **more)


@pytest.mark.parametrize(
    ("instances", "chosen"),
    [
        ([view(0, 9), view(1, 8), view(2, 9)], 1),
        ([view(2, 8), view(1, 8)], 1),
        ([view(0, 8, waiting_tokens=32), view(1, 9)], 1),
        ([view(0, 8, waiting_tokens=8), view(1, 9)], 0),
        ([view(0, 8), view(1, 15, total_blocks=200)], 1),
        # KV in host memory and on its way counts, its prompt does not once more.
        ([view(0, 8, used_host_blocks=2), view(1, 9)], 1),
        ([view(0, 8, booked_blocks=2), view(1, 9)], 1),
        ([view(0, 8, 32, used_host_blocks=1, stored_prompt_tokens=32), view(1, 10)], 0),
    ],
)
def test_the_smallest_share_of_needed_blocks_is_chosen_then_the_lowest_id(instances, chosen):
    assert LeastKv().place(REQUEST, instances) == chosen


def test_requests_that_arrive_together_are_spread_because_views_count_those_handed_over():
    instance = Instance(latency=AffineLatency(base_s=1.0), kv_blocks=100)
    engines = [Engine(FCFS(), instance, instance_id=i) for i in range(3)]
    requests = make_requests(prompt_tokens=[16] * 6, output_tokens=[4] * 6)
    placement = LeastKv()
    for number, request in enumerate(simulated_requests(requests)):
        seen = [engine.view() for engine in engines]
        engines[placement.place(request.view(number), seen)].submit(request)
    assert [len(engine.arrivals.pending) for engine in engines] == [2, 2, 2]
