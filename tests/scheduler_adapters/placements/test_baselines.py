"""Baseline placements, by views of instances."""

from collections import Counter

import pytest

from scheduler_adapters.placements.baselines import (
    LeastKv,
    MemoryAware,
    MemoryAwarePools,
    RandomPlacement,
    RoundRobinPlacement,
    ShortestQueue,
)
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.engine.arrivals import request_states
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.views import InstanceView, RequestView
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.placements.views import view

REQUEST = RequestView("a", 0, 0.0, 10)
VIEWS = [view(i) for i in (4, 7, 2)]


def test_every_instance_gets_its_turn_by_its_own_id():
    placement = RoundRobinPlacement()
    assert [placement.place(REQUEST, VIEWS) for _ in range(5)] == [4, 7, 2, 4, 7]
    assert placement.place(REQUEST, VIEWS[:2]) == 7  # the sixth request, of two instances


def random_choices(seed: int) -> list[int]:
    placement = RandomPlacement(seed=seed)
    return [placement.place(REQUEST, VIEWS) for _ in range(600)]


def test_equal_seeds_choose_equally_and_every_instance_as_often():
    assert random_choices(3) == random_choices(3) != random_choices(4)
    counts = Counter(random_choices(3))
    assert set(counts) == {4, 7, 2}
    assert min(counts.values()) > 150


def test_the_fewest_requests_are_chosen_then_the_lowest_id():
    queues = {3: (2, 2), 2: (1, 3), 1: (3, 0)}
    views = [view(n, num_waiting=w, num_answering=a) for n, (w, a) in queues.items()]
    assert ShortestQueue().place(REQUEST, views) == 1
    assert ShortestQueue().place(REQUEST, views[:2]) == 2


def kv(number: int, used: int, waiting_tokens: int = 0, **more: int) -> InstanceView:
    return view(number, used_blocks=used, waiting_prompt_tokens=waiting_tokens, **more)


@pytest.mark.parametrize(
    ("instances", "chosen"),
    [
        ([kv(0, 9), kv(1, 8), kv(2, 9)], 1),
        ([kv(2, 8), kv(1, 8)], 1),
        ([kv(0, 8, waiting_tokens=32), kv(1, 9)], 1),
        ([kv(0, 8, waiting_tokens=8), kv(1, 9)], 0),
        ([kv(0, 8), kv(1, 15, total_blocks=200)], 1),
        # KV in host memory and in transfer counts, and its prompt does not count once more.
        ([kv(0, 8, used_host_blocks=2), kv(1, 9)], 1),
        ([kv(0, 8, booked_blocks=2), kv(1, 9)], 1),
        ([kv(0, 8, 32, used_host_blocks=1, stored_prompt_tokens=32), kv(1, 10)], 0),
    ],
)
def test_the_smallest_share_of_needed_blocks_wins_then_lowest_id(instances, chosen):
    assert LeastKv().place(REQUEST, instances) == chosen


def test_requests_that_arrive_together_are_spread_by_the_views():
    instance = Instance(latency=AffineLatency(base_s=1.0), kv_blocks=100)
    engines = [Engine(FCFS(), instance, instance_id=i) for i in range(3)]
    requests = make_requests(prompt_tokens=[16] * 6, output_tokens=[4] * 6)
    placement = LeastKv()
    for request in request_states(requests):
        seen = [engine.view() for engine in engines]
        engines[placement.place(request.view, seen)].submit(request)
    assert [len(engine.arrivals.pending) for engine in engines] == [2, 2, 2]


def test_most_free_blocks_win_whatever_waits_then_the_lowest_id():
    place = MemoryAware().place
    assert place(REQUEST, [kv(0, 5, total_blocks=20), kv(1, 9, total_blocks=30)]) == 1
    assert place(REQUEST, [kv(2, 5, waiting_tokens=999), kv(3, 5)]) == 2
    assert place(REQUEST, [kv(2, 5, booked_blocks=1), kv(3, 5)]) == 3


def test_in_pools_prompts_and_decodes_each_go_where_most_is_free():
    views = [view(0, "prefill", 9), view(1, "prefill", 8), view(2, "decode", 5), view(3, "both", 6)]
    placement, request = MemoryAwarePools(), RequestView("a", 0, 0.0, 79, generated_tokens=1)
    assert placement.place(request, views) == 3
    assert placement.place(request, views[:3]) == 1
    assert placement.at_prefill_end(request, 1, views) == 2
    claimed = view(1, "decode", 50, waiting_prompt_tokens=800)
    full = [view(2, "decode", 95), view(4, "decode", 96), claimed]
    assert placement.at_prefill_end(request, 1, full) == 2
    assert placement.at_prefill_end(request, 1, full[1:]) is None
