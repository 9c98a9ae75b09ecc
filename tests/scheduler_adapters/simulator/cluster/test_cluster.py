"""The cluster against one that walks every step, and the laws of moving requests."""

from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import partial
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lengthwise.errors import ConfigError, InvalidDecision, SchedulingError
from scheduler_adapters.placement import PLACEMENTS, Move, Placement, SetRole, Watch, load_placement
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.cluster import ClusterRun, request_migrations, simulate_cluster
from scheduler_adapters.simulator.cluster.outages import Outage
from scheduler_adapters.simulator.cluster.placement_views import TelemetryAge
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.simulator.observers import LoadRecorder
from scheduler_adapters.simulator.simulate import Interrupted, simulate_replicas
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.simulator.any_policy import (
    LATENCY,
    EveryToken,
    assert_equal,
    hosts,
    instances,
    serve,
    workloads,
)
from tests.scheduler_adapters.simulator.cluster.reference_cluster import (
    ReferenceCluster,
    assert_runs_are_equal,
)
from tests.scheduler_adapters.simulator.cluster.test_request_migrations import SECONDS, MovesAt

POLICIES = {
    "fcfs": FCFS,
    "pars": lambda: load_policy("pars-paper"),
    "slai": lambda: load_policy("slai"),
    "round-robin": lambda: RoundRobin(quantum_tokens=5),
    "pascal": lambda: Pascal(quantum_tokens=5, demote_above_tokens=40),
    "pascal-offload": lambda: Pascal(quantum_tokens=5, demote_above_tokens=40, offload=True),
}
FABRICS = st.builds(
    Fabric,
    kv_bytes_per_token=st.just(1),
    bytes_per_s=st.sampled_from([1e9, 20_000.0, 500.0]),
    latency_s=st.sampled_from([0.0, 0.02]),
)
POOLED = {"distserve", "splitwise", "phasor", "memory-aware-pools"}
"""Placements that need an instance for either part."""
SMALL_WATCH = Watch(quantum_tokens=5, demote_above_tokens=60, pace_s=0.03)


@dataclass
class AnyPlacement(Placement):
    """Every choice depends on every whole number of every view, so none may differ."""

    salt: int
    moves: bool = True
    name = "any"
    watch = SMALL_WATCH
    watches_prefills = True

    def place(self, request, instances):
        return self._choice(request, instances, request.arrival_s)

    def at_phase_change(self, request, instance, instances):
        if not self.moves:
            return instance
        return self._choice(request, instances, request.last_token_s)

    def _choice(self, request, instances, now_s):
        total = self.salt + request.prompt_tokens + request.generated_tokens
        for view in instances:
            numbers = [getattr(view, field.name) for field in fields(view)]
            numbers = [number for number in numbers if isinstance(number, int)]
            numbers += [now_s < view.paced_until_s, view.now_s > now_s, len(view.role)]
            total += (view.instance_id + 1) * sum(
                (i + 3) * number for i, number in enumerate(numbers)
            )
        return instances[total % len(instances)].instance_id


@dataclass
class AnyHandOver(AnyPlacement):
    """Lets prefilled requests wait now and then, once in a while for ever."""

    hands_over_from = ("prefill", "both")

    def __post_init__(self):
        self.refused = 0

    def at_prefill_end(self, request, instance, instances):
        chosen = self._choice(request, instances, request.last_token_s)
        self.refused += 1
        return None if chosen == 0 and self.refused % 4 else chosen


@dataclass
class AnyTick(AnyHandOver):
    """Moves requests at ticks, and changes roles."""

    tick_s = 0.04

    def __post_init__(self):
        super().__post_init__()
        self.placed = []
        self.num_ticks = 0

    def place(self, request, instances):
        self.placed.append(request)
        return super().place(request, instances)

    def tick(self, now_s, instances):
        changes = []
        self.num_ticks += 1
        if self.num_ticks > 20:  # or requests would move for ever, and never run
            return changes
        for request in self.placed[-3:]:
            to = self._choice(request, instances, now_s)
            how = ("recompute", "copy", "live", "live")[(to + request.prompt_tokens) % 4]
            changes.append(Move(request_id=request.request_id, to=to, how=how))
        if self.placed and self._choice(self.placed[0], instances, now_s) == 0:
            role = ("prefill", "decode", "both")[len(self.placed) % 3]
            changes.append(SetRole(instance=instances[-1].instance_id, role=role))
        return changes


placements = st.one_of(
    st.builds(AnyTick, salt=st.integers(0, 9), moves=st.booleans()),
    st.builds(AnyHandOver, salt=st.integers(0, 9), moves=st.booleans()),
    st.builds(AnyPlacement, salt=st.integers(0, 9), moves=st.booleans()),
    st.builds(
        load_placement,
        st.just("pascal"),
        migration=st.sampled_from(["adaptive", "always", "never"]),
        reserve_tokens=st.sampled_from([0, 50]),
        quantum_tokens=st.just(5),
        demote_above_tokens=st.just(40),
        pace_s=st.sampled_from([0.1, 0.02]),
    ),
    st.builds(load_placement, st.sampled_from(sorted(set(PLACEMENTS) - {"pascal"}))),
)


def fresh(placement: Placement) -> Placement:
    """Return a placement that has not counted or drawn anything."""
    return deepcopy(placement)


def check(requests, placement, policy, instance, host, count, roles, outages, **options):
    instance = replace(instance, host=host) if policy.endswith("offload") else instance
    parts = (POLICIES[policy], [instance] * count)
    roles = roles[:count]
    if placement.name in POOLED:
        roles[0], roles[-1] = ("prefill", "decode") if count > 1 else ("both", "both")
    options["roles"] = roles
    options["outages"] = [
        Outage(instance=instance, at_s=at_s, until_s=at_s + lasts_s)
        for instance, (at_s, lasts_s) in outages.items()
        if instance < count
    ]
    walked = ReferenceCluster(requests, fresh(placement), *parts, **options)
    if walked.homeless:
        with pytest.raises(SchedulingError, match=f"{len(walked.homeless)} requests are left"):
            simulate_cluster(requests, fresh(placement), *parts, **options)
        return
    if walked.parked:  # the placement refused when nothing else was to come
        with pytest.raises(InvalidDecision, match=f"left {len(walked.parked)} prefilled"):
            simulate_cluster(requests, fresh(placement), *parts, **options)
        return
    for observers in ([], [EveryToken()]):
        run = simulate_cluster(
            requests, fresh(placement), *parts, observers=lambda _, told=observers: told, **options
        )
        assert_runs_are_equal(run, walked)
        assert_nothing_is_lost(run)
    for engine in walked.engines:
        assert engine.load.used_blocks == engine.memory.held_blocks == 0


def assert_nothing_is_lost(run: ClusterRun) -> None:
    timeline = run.timeline
    wanted, (row, first, last) = timeline.requests.output_tokens, timeline.runs.T
    emitted = np.bincount(row, last - first + 1, len(wanted))
    np.testing.assert_array_equal(emitted, np.where(timeline.rejected, 0, wanted))
    np.testing.assert_array_equal(np.isnan(timeline.finished_s), timeline.rejected)
    ids = timeline.requests.request_id.tolist()
    for move in run.migrations:
        token_s = timeline.token_s(ids.index(move.request_id))
        pause_s = move.end_s - move.downtime_s
        # A pause starts at the end of a step, which gave it a token.
        assert not ((pause_s + 1e-9 < token_s) & (token_s <= move.end_s)).any()
        assert move.start_s <= pause_s + 1e-9


anything = partial(
    given,
    requests=workloads(),
    policy=st.sampled_from(sorted(POLICIES)),
    instance=instances,
    host=hosts,
    count=st.integers(1, 4),
    fabric=FABRICS,
    roles=st.lists(st.sampled_from(["prefill", "decode", "both"]), min_size=4, max_size=4),
    max_stages=st.integers(2, 5),
    last_blocks=st.integers(1, 3),
    clients=st.one_of(st.none(), st.none(), st.integers(1, 20)),
    age=st.builds(
        TelemetryAge,
        period_s=st.sampled_from([0.0, 0.0, 0.03, 0.3]),
        max_age_s=st.sampled_from([inf, 0.1]),
    ),
    outages=st.one_of(
        st.just({}),
        st.dictionaries(
            st.integers(0, 3),
            st.tuples(st.sampled_from([0.0, 0.02, 0.1, 0.35]), st.sampled_from([0.03, 0.2, inf])),
        ),
    ),
)


def check_with_stages(max_stages, last_blocks, **parts):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_migrations, "MAX_STAGES", max_stages)
        patch.setattr(request_migrations, "LAST_BLOCKS", last_blocks)
        check(**parts)


@settings(max_examples=40, deadline=None)
@anything(placement=placements)
def test_any_cluster_runs_as_if_every_step_were_walked(**parts):
    check_with_stages(**parts)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@anything(placement=placements)
def test_so_does_any_of_many_more_clusters(**parts):
    check_with_stages(**parts)


def requests_of(count: int, *, gap_s: float = 0.03, reasoning: bool = True):
    random = np.random.default_rng(1)
    output_tokens = random.integers(1, 90, count)
    return make_requests(
        prompt_tokens=random.integers(1, 200, count),
        output_tokens=output_tokens,
        reasoning_tokens=random.integers(0, output_tokens + 1) if reasoning else 0,
        arrival_s=np.cumsum(random.exponential(gap_s, count)),
        scores=output_tokens,
    )


INSTANCE = Instance(latency=LATENCY, kv_blocks=120)
FABRIC = Fabric(kv_bytes_per_token=1, bytes_per_s=10_000.0)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_one_instance_under_any_placement_is_the_single_engine(placement, policy):
    requests = requests_of(60)
    make = Pascal if policy == "pascal-offload" else POLICIES[policy]
    run = simulate_cluster(requests, load_placement(placement), make, [INSTANCE])
    assert_equal(run.timeline, serve(Engine(make(), INSTANCE), requests))
    assert not run.timeline.instance.any()
    assert not run.timeline.migrations.any()


@pytest.mark.parametrize("replicas", [2, 5, 70])
@pytest.mark.parametrize("policy", ["fcfs", "slai", "pascal"])
def test_round_robin_over_instances_is_what_replicas_are(policy, replicas):
    requests = requests_of(60)
    run = simulate_cluster(
        requests, load_placement("round-robin"), POLICIES[policy], [INSTANCE] * replicas
    )
    alone = simulate_replicas(requests, POLICIES[policy], INSTANCE, replicas=replicas)
    assert_equal(run.timeline, alone)
    np.testing.assert_array_equal(run.timeline.instance, alone.instance)


class Follow(Placement):
    """Requests think in the first instance and answer in the last."""

    name = "follow"

    def place(self, request, instances):
        return 0

    def at_phase_change(self, request, instance, instances):
        return len(instances) - 1


def test_a_moved_request_answers_there_after_its_kv_is_copied():
    requests = make_requests(prompt_tokens=[16], output_tokens=[6], reasoning_tokens=[3])
    fabric = Fabric(kv_bytes_per_token=10, bytes_per_s=100.0, latency_s=0.5)
    loads = [LoadRecorder(), LoadRecorder()]
    run = simulate_cluster(
        requests, Follow(), FCFS, [SECONDS] * 2, fabric=fabric, observers=lambda i: [loads[i]]
    )
    # 16 + 2 tokens have their KV computed: two blocks, 32 * 10 bytes.
    (move,) = run.migrations
    assert (move.source, move.destination, move.kv_blocks) == (0, 1, 2)
    assert (move.start_s, move.end_s, move.downtime_s) == (3.0, 6.7, pytest.approx(3.7))
    np.testing.assert_allclose(run.timeline.token_s(0), [1, 2, 3, 7.7, 8.7, 9.7])
    assert run.timeline.first_answer_s[0] == 7.7
    assert run.timeline.migrations[0] == run.timeline.instance[0] == 1
    assert [len(load.curve().end_s) for load in loads] == [3, 3]


def test_settings_that_cannot_be_are_refused():
    requests = make_requests(prompt_tokens=[5], output_tokens=[5], reasoning_tokens=[2])
    with pytest.raises(ConfigError, match="give a fabric"):
        simulate_cluster(requests, Follow(), FCFS, [INSTANCE] * 2)
    small = replace(INSTANCE, kv_blocks=1)
    with pytest.raises(InvalidDecision, match="instance 1, whose memory can never hold it"):
        simulate_cluster(
            make_requests(prompt_tokens=[50], output_tokens=[5], reasoning_tokens=[2]),
            Follow(),
            FCFS,
            [INSTANCE, small],
            fabric=FABRIC,
        )


class PressesCtrlC(Placement):
    name = "presses"

    def place(self, request, instances):
        if request.number == 40:
            raise KeyboardInterrupt
        return request.number % 2


def test_an_interrupted_run_keeps_what_had_finished():
    requests = requests_of(60)
    with pytest.raises(Interrupted) as caught:
        simulate_cluster(requests, PressesCtrlC(), FCFS, [INSTANCE] * 2)
    timeline = caught.value.timeline
    assert np.isnan(timeline.finished_s[40:]).all()
    assert not timeline.rejected.any()


class Pools(Placement):
    """Prefills in 0, decodes in 1; notes the times of calls about a prefill."""

    name = "pools"

    def __init__(self, refusals: float = 0) -> None:
        self.refusals = refusals
        self.asked: list[tuple[str, float]] = []

    def place(self, request, instances):
        return 0

    def at_prefill_end(self, request, instance, instances):
        self.asked.append((request.request_id, instances[instance].used_blocks))
        self.refusals -= 1
        return None if self.refusals >= 0 else 1


def test_a_prefilled_request_keeps_its_blocks_until_it_is_taken():
    requests = make_requests(
        prompt_tokens=[16, 32], output_tokens=[3, 3], arrival_s=[0.0, 0.5], request_id=["a", "b"]
    )
    placement = Pools(refusals=1)
    fabric = Fabric(kv_bytes_per_token=1, bytes_per_s=32.0)
    run = simulate_cluster(
        requests, placement, FCFS, [SECONDS] * 2, fabric=fabric, roles=["prefill", "decode"]
    )
    # Asked at the end of each prefill; a is taken at the second one only, before b.
    assert placement.asked == [("a", 1), ("a", 3), ("b", 3)]
    starts_s = [(one.request_id, one.start_s, one.downtime_s) for one in run.migrations]
    # Both copies start at 2 s and share the links.
    assert starts_s == [("a", 1.0, pytest.approx(2.0)), ("b", 2.0, pytest.approx(1.5))]
    np.testing.assert_allclose(run.timeline.first_token_s, [1.0, 2.0])


def test_a_tick_sets_roles_and_what_it_cannot_do_is_refused():
    requests = make_requests(prompt_tokens=[16], output_tokens=[4], request_id=["a"])
    role = SetRole(instance=1, role="decode")
    assert simulate_cluster(requests, MovesAt(role), FCFS, [SECONDS] * 2).roles == ((1.5, role),)
    for wrong, message in (
        (SetRole(instance=2, role="decode"), "name an instance and one of the roles"),
        (SetRole(instance=0, role="both?"), "name an instance and one of the roles"),
        (Move(request_id="b", to=1), "it has not arrived; move a request that was placed"),
        (Move(request_id="a", to=2), "to instance 2; name one of the views"),
    ):
        with pytest.raises(InvalidDecision, match=message):
            simulate_cluster(requests, MovesAt(wrong), FCFS, [SECONDS] * 2, fabric=FABRIC)
    with pytest.raises(ConfigError, match="roles are 1 for 2 instances"):
        simulate_cluster(requests, MovesAt(), FCFS, [SECONDS] * 2, roles=["both"])
