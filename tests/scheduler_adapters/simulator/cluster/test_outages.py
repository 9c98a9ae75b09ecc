"""Outages: only KV is lost, and no request is placed in a dead instance."""

from dataclasses import replace

import numpy as np
import pytest

from lengthwise.errors import ConfigError, InvalidDecision
from scheduler_adapters.placement import Move, Placement, SetRole
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.cluster import simulate_cluster
from scheduler_adapters.simulator.cluster.outages import Outage
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.simulator.cluster.test_request_migrations import SECONDS, MovesAt

FABRIC = Fabric(kv_bytes_per_token=1, bytes_per_s=4.0)


class First(MovesAt):
    """The first instance that lives; a tick at 1.5 s changes something."""

    name = "first"

    def __init__(self, *changes: Move | SetRole) -> None:
        super().__init__(*changes)
        self.shown: list[tuple[int, ...]] = []

    def place(self, request, instances):
        self.shown.append(tuple(view.instance_id for view in instances))
        return instances[0].instance_id


def run_of(*outages: Outage, placement: Placement | None = None, count: int = 2, **options):
    requests = make_requests(
        prompt_tokens=[16, 16], output_tokens=[5, 5], arrival_s=[0.0, 2.5], request_id=["a", "b"]
    )
    return simulate_cluster(
        requests,
        placement or First(),
        FCFS,
        [SECONDS] * count,
        fabric=FABRIC,
        outages=outages,
        **options,
    )


def test_lost_requests_are_placed_again_and_keep_their_tokens():
    placement = First()
    run = run_of(Outage(instance=0, at_s=1.5), placement=placement)
    # The step under way still gives its token, at 2 s; then 18 tokens are prefilled anew.
    np.testing.assert_array_equal(run.timeline.token_s(0), [1, 2, 3, 4, 5])
    assert run.num_replaced.tolist() == [1, 0]
    assert run.timeline.instance.tolist() == [1, 1]
    assert not run.timeline.migrations.any()
    assert placement.shown == [(0, 1), (1,), (1,)]


@pytest.mark.parametrize("dies", [0, 1])
@pytest.mark.parametrize("how", ["copy", "live"])
def test_a_request_between_two_instances_is_lost_with_either(how, dies):
    move = Move(request_id="a", to=1, how=how)
    run = run_of(Outage(instance=dies, at_s=3.5, until_s=3.6), placement=First(move))
    assert not run.migrations
    assert run.num_aborted == (how == "live")
    # One that still decodes in its source loses nothing with its destination.
    assert run.num_replaced[0] == (how == "copy" or dies == 0)
    assert np.isfinite(run.timeline.finished_s).all()


@pytest.mark.parametrize("change", [Move(request_id="a", to=1), SetRole(instance=1, role="both")])
def test_a_dead_instance_that_is_named_is_an_invalid_decision(change):
    with pytest.raises(InvalidDecision, match=r"name one of the views|name an instance"):
        run_of(Outage(instance=1, at_s=1.0), placement=First(change))


def test_outages_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="of 2 instances; name one of them"):
        run_of(Outage(instance=2, at_s=1.0))
    first = Outage(instance=0, at_s=1.0)
    with pytest.raises(ConfigError, match="let one end before the other"):
        run_of(first, replace(first, at_s=2.0))


def test_ticks_end_with_the_work_even_if_an_outage_is_far_ahead():
    class Counts(First):
        num_ticks = 0

        def tick(self, now_s, instances):
            self.num_ticks += 1
            return ()

    placement = Counts()
    run_of(Outage(instance=0, at_s=1e6, until_s=2e6), placement=placement)
    assert placement.num_ticks == 6


def test_what_is_placed_late_tells_the_placement_when():
    class Times(First):
        def __init__(self) -> None:
            super().__init__()
            self.times: list[tuple[float, float | None]] = []

        def place(self, request, instances):
            self.times.append((request.arrival_s, request.last_token_s))
            return super().place(request, instances)

    placement = Times()
    run_of(Outage(instance=0, at_s=0.5, until_s=1.5), placement=placement, count=1)
    assert placement.times == [(0.0, None), (0.0, 1.5), (2.5, None)]
