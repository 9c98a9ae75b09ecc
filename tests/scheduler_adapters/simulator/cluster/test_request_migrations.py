"""Requests that are copied while they decode: stages, reservations, and what ends a migration."""

import numpy as np
import pytest

from lengthwise.errors import InvalidDecision
from scheduler_adapters.placement import Move, Placement
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.cluster import ClusterRun, simulate_cluster
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.workload.requests import make_requests

SECONDS = Instance(latency=AffineLatency(base_s=1.0), kv_blocks=20, watermark_fraction=0.0)


class MovesAt(Placement):
    name = "moves-at"
    tick_s = 1.5

    def __init__(self, *moves: Move) -> None:
        self.moves = moves
        self.used_blocks: list[tuple[int, ...]] = []

    def place(self, request, instances):
        return 0

    def tick(self, now_s, instances):
        self.used_blocks.append(tuple(view.used_blocks for view in instances))
        return self.moves if now_s == 1.5 else ()


def run_of(
    output_tokens: int,
    *,
    to: Instance = SECONDS,
    how: str = "live",
    placement: MovesAt | None = None,
    bytes_per_s: float = 8.0,
) -> ClusterRun:
    requests = make_requests(prompt_tokens=[16], output_tokens=[output_tokens], request_id=["a"])
    return simulate_cluster(
        requests,
        placement or MovesAt(Move(request_id="a", to=1, how=how)),
        FCFS,
        [SECONDS, to],
        fabric=Fabric(kv_bytes_per_token=1, bytes_per_s=bytes_per_s),
    )


def test_a_request_decodes_while_copied_and_pauses_for_the_rest():
    run = run_of(8)
    (move,) = run.migrations
    # From the end of its second step 17 tokens go in 2.125 s. The step under way then ends at 5 s:
    # 3 tokens are new, and take 3/8 s.
    assert (move.start_s, move.end_s, move.downtime_s) == (2.0, 5.375, 0.375)
    assert (move.stages, move.kv_blocks) == (2, 2)
    np.testing.assert_array_equal(run.timeline.token_s(0), [1, 2, 3, 4, 5, 6.375, 7.375, 8.375])
    assert run.num_aborted == 0


def test_another_way_of_moving_is_refused():
    with pytest.raises(InvalidDecision, match="use how='copy', 'live' or 'recompute'"):
        run_of(8, how="teleport")
