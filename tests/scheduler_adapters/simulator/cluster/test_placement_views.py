"""What a placement sees of instances: all of them, one, or some; now, or as they were."""

from dataclasses import replace

import numpy as np
import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.placement import Move, Placement, SetRole, Watch, load_placement
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
    first = [(0, 0, 0), (0, 0, 0)]
    assert placement.seen == [
        first,
        [(1, 0, 5), (0, 0, 0)],
        [(2, 0, 10), (0, 0, 0)],
        [(0, 3, 0), (0, 0, 0)],  # the snapshot at 4 s
    ]


def test_a_short_period_shows_what_fresh_views_show():
    fresh, short = Notes(), Notes()
    run_of(fresh, [0.0, 1.5, 2.5, 4.5], TelemetryAge())
    run_of(short, [0.0, 1.5, 2.5, 4.5], TelemetryAge(period_s=0.25))
    assert fresh.seen == short.seen


def test_too_old_views_leave_the_choice_to_the_shortest_queue():
    run = run_of(Notes(), [0.0, 0.5, 2.5, 3.0, 4.5], TelemetryAge(period_s=4.0, max_age_s=1.0))
    # The third finds two requests at 0 and none at 1, the fourth one there.
    assert run.timeline.instance.tolist() == [0, 0, 1, 1, 0]
    assert run.num_fallbacks == 2


def test_booked_kv_and_roles_are_seen_at_once():
    class Moves(Notes):
        name = "moves"
        tick_s = 1.5

        def place(self, request, instances):
            self.seen.append(
                [(view.role, view.booked_blocks, view.num_migrating) for view in instances]
            )
            return 0

        def tick(self, now_s, instances):
            if now_s != 1.5:
                return ()
            assert not instances[0].decodes()
            return [Move(request_id="0", to=1), SetRole(instance=1, role="decode")]

    placement = Moves()
    run_of(placement, [0.0, 1.7], TelemetryAge(period_s=9.0))
    assert placement.seen[1] == [("both", 0, 0), ("decode", 1, 0)]


def test_snapshots_show_who_decoded_then_and_what_was_moved_live():
    class Decodes(Notes):
        name = "decodes"
        tick_s = 2.5
        found: tuple = ()

        def tick(self, now_s, instances):
            requests = instances[0].decodes()
            self.found += ([request.generated_tokens for request in requests],)
            self.found += (tuple(view.num_migrating for view in instances),)
            return [Move(request_id="0", to=1, how="live")] if now_s == 2.5 else ()

    placement = Decodes()
    run_of(placement, [0.0], TelemetryAge(period_s=2.0))
    # Snapshots at 0, 2, 4 and 6 s; 7 tokens go from 3 s to 4.75 s, and two more from 5 s to 5.5 s.
    assert placement.found[:8] == ([], (0, 0), [2], (0, 0), [4], (1, 1), [], (0, 0))


def test_ages_that_cannot_be_are_refused():
    for wrong, message in (
        ({"period_s": -1.0}, "period_s is -1.0; use seconds >= 0"),
        ({"max_age_s": -1.0}, "max_age_s is -1.0; use seconds >= 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            TelemetryAge(**wrong)


def test_snapshots_go_on_while_a_tick_may_hand_over_who_waits():
    class TakesAtTicks(Notes):
        name = "takes-at-ticks"
        tick_s = 3.5
        now_s = seen_s = 0.0

        def at_prefill_end(self, request, instance, instances):
            return 1 if self.now_s else None

        def at_phase_change(self, request, instance, instances):
            self.seen_s = instances[1].now_s
            return instance

        def tick(self, now_s, instances):
            self.now_s = now_s
            return ()

    placement = TakesAtTicks()
    requests = make_requests(prompt_tokens=[5], output_tokens=[8], reasoning_tokens=[4])
    simulate_cluster(
        requests,
        placement,
        FCFS,
        [SECONDS] * 2,
        roles=["prefill", "decode"],
        fabric=Fabric(kv_bytes_per_token=1),
        age=TelemetryAge(period_s=1.5),
    )
    # Nothing but the tick is to come when the second snapshot is taken, at 1.5 s. The fourth token
    # is there at 6.5 s, and the snapshot before it is that of 6 s.
    assert placement.seen_s == pytest.approx(6.5)


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


class Watches(Placement):
    """Notes who thinks and who answers in each instance, when something is placed or changes."""

    name = "watches"
    watch = Watch(demote_above_tokens=70, quantum_tokens=100)

    def __init__(self) -> None:
        self.seen: list[list[tuple[int, int]]] = []

    def place(self, request, instances):
        self.note(instances)
        return 0

    def at_phase_change(self, request, instance, instances):
        self.note(instances)
        return 1

    def note(self, instances):
        self.seen.append([(one.num_thinking, one.num_fresh_answering) for one in instances])


def test_between_snapshots_those_that_think_and_answer_are_counted_as_fresh_views_do():
    seen = []
    for period_s in (0.0, 100.0):
        placement = Watches()
        simulate_cluster(
            # The second prompt is above the limit of context from the start.
            make_requests(
                prompt_tokens=[64, 96, 64],
                output_tokens=[9] * 3,
                reasoning_tokens=[3, 9, 5],
                arrival_s=[0.1, 0.2, 0.3],
            ),
            placement,
            FCFS,
            [SECONDS] * 2,
            fabric=Fabric(kv_bytes_per_token=1, bytes_per_s=1e9),
            age=TelemetryAge(period_s=period_s),
        )
        seen.append(placement.seen)
    # The first one to answer leaves; of that only a new snapshot tells.
    assert seen[0][:4] == seen[1][:4]
    assert seen[0][2:4] == [[(1, 0), (0, 0)], [(1, 1), (0, 0)]]
    assert [views[1] for views in seen[0]] == [views[1] for views in seen[1]]
