"""Views of instances for a placement: of all, one, or some; now, or as they were."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler_adapters.placement import Placement, load_placement
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.cluster import ClusterRun, simulate_cluster
from scheduler_adapters.simulator.cluster.placement_views import TelemetryAge
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.links import Fabric
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
def test_prefilled_requests_are_handed_over_once_a_snapshot_shows_room(name, period_s):
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
