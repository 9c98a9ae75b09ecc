"""Views of instances for a placement, now or as they were; refused answers, the shortest queue."""

from dataclasses import replace

import numpy as np
import pytest

from lengthwise.errors import InvalidDecision
from scheduler_adapters.placement import Placement, load_placement
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.cluster import ClusterRun, simulate_cluster
from scheduler_adapters.simulator.cluster.placement_views import QueueLength, TelemetryAge
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.views import InstanceView, RequestView
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.simulator.cluster.test_request_migrations import SECONDS


class Notes(Placement):
    """Places all in instance 0, and notes what it sees."""

    name = "notes"
    watches_prefills = True

    def __init__(self) -> None:
        self.seen: list[tuple] = []

    def place(self, request, instances):
        self.seen.append(
            [(view.num_waiting, view.num_answering, view.prefill_tokens) for view in instances]
        )
        return 0


def run_of(placement: Placement, arrival_s: list[float], age: TelemetryAge) -> ClusterRun:
    count = len(arrival_s)
    requests = make_requests(
        prompt_tokens=[5] * count, output_tokens=[9] * count, arrival_s=arrival_s
    )
    fabric = Fabric(kv_bytes_per_token=1, bytes_per_s=4.0)
    return simulate_cluster(requests, placement, FCFS, [SECONDS] * 2, age=age, fabric=fabric)


def test_between_snapshots_only_what_the_router_decided_is_seen():
    placement = Notes()
    run_of(placement, [0.0, 0.5, 2.5, 4.5], TelemetryAge(period_s=4.0))
    assert placement.seen == [
        [(0, 0, 0), (0, 0, 0)],
        [(1, 0, 5), (0, 0, 0)],
        [(2, 0, 10), (0, 0, 0)],
        [(0, 3, 0), (0, 0, 0)],  # the snapshot at 4 s
    ]


@pytest.mark.parametrize("name", ["distserve", "memory-aware-pools", "phasor", "splitwise"])
@pytest.mark.parametrize("period_s", [0.1, 0.5, 1.0, 3.0])
def test_prefilled_requests_move_once_a_snapshot_shows_room(name, period_s):
    # Two of the eight decode at a time, so the last views before the end of them show no room.
    small = Instance(latency=AffineLatency(base_s=0.05), kv_blocks=24, watermark_fraction=0.0)
    settings = {"max_waiting_fraction": 1.0} if name == "distserve" else {}
    run = simulate_cluster(
        make_requests(
            prompt_tokens=[160] * 8, output_tokens=[30] * 8, arrival_s=np.arange(8) * 0.1
        ),
        load_placement(name, **settings),
        FCFS,
        [replace(small, kv_blocks=200), small],
        fabric=Fabric(kv_bytes_per_token=1000),
        roles=["prefill", "decode"],
        age=TelemetryAge(period_s=period_s),
    )
    assert np.isfinite(run.timeline.finished_s).all()


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
            simulate_cluster(requests, placement, FCFS, [SECONDS] * 2)


def test_a_late_score_is_not_seen_at_the_arrival():
    requests = make_requests(
        prompt_tokens=[5, 5], output_tokens=[2, 2], scores=[3.0, 4.0], score_s=[0.0, 1.0]
    )
    placement = Sends(0)
    simulate_cluster(requests, placement, FCFS, [SECONDS])
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
