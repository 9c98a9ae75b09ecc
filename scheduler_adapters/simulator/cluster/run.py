"""Requests, a placement and instances in; what came of the run out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lengthwise.errors import ConfigError, require
from scheduler_adapters.placement import Placement, SetRole
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.cluster.cluster import Cluster
from scheduler_adapters.simulator.cluster.moves import LiveMigration
from scheduler_adapters.simulator.cluster.outages import Outage
from scheduler_adapters.simulator.cluster.seen import TelemetryAge
from scheduler_adapters.simulator.engine.engine import Engine, uncollected
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.simulator.simulate import EngineKind, Interrupted
from scheduler_adapters.timeline.migrations import Migration, join_moved
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import Role
from scheduler_adapters.workload.requests import Ints, Requests


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClusterRun:
    """What came of a run."""

    timeline: Timeline
    """Of all instances; `instance` is where a request was last."""
    migrations: Sequence[Migration]
    """In the order in which they landed."""
    num_aborted: int
    """Live migrations that were given up: the request had ended, was evicted, or found no room."""
    num_replaced: Ints
    """How often each request was placed again, because its instance had died."""
    num_fallbacks: int
    """Requests placed by the shortest queue, because the views were too old."""
    roles: Sequence[tuple[float, SetRole]]
    """Changes of roles, with their times."""


def simulate_cluster(
    requests: Requests,
    placement: Placement,
    make_policy: Callable[[], Policy],
    instances: Sequence[Instance],
    *,
    fabric: Fabric | None = None,
    roles: Sequence[Role] | None = None,
    kind: EngineKind = "plain",
    clients: int | None = None,
    live_migration: LiveMigration | None = None,
    outages: Sequence[Outage] = (),
    age: TelemetryAge | None = None,
    observers: Callable[[int], Iterable[EngineObserver]] = lambda instance: (),
) -> ClusterRun:
    """Serve `requests` on `instances` in virtual time; equal input, equal bytes.

    A request that cannot be held by the instance where it is placed is rejected and reported.

    Args:
        make_policy: makes the policy of each instance.
        fabric: the network between instances; needed where the placement moves requests.
        roles: of the instances at first; both for all where it is None. An instance of role prefill
            hands its requests over when they have their first token.
        kind, clients: those of `simulate`.
        live_migration: how KV is copied while its request decodes; None: as by default.
        outages: times in which instances are dead. Requests that were there are placed again; while
            all are dead they wait for the first to come.
        age: of what the placement sees; None: it sees instances as they are.
        observers: of each instance, by its number.

    Raises:
        ConfigError: there is no instance, no fabric where a request is to be moved, or an outage
            that cannot be.
        SchedulingError: requests are left when the last instance has died for good.
        InvalidDecision: the placement named an instance that is not there, or a policy failed.
        Interrupted: Ctrl-C; holds the timeline so far.
        As `simulate` does for each instance.
    """
    require("instances", len(instances), bool(instances), "one or more")
    engines = [
        Engine(
            make_policy(),
            instance,
            vllm=kind == "vllm",
            instance_id=number,
            observers=observers(number),
        )
        for number, instance in enumerate(instances)
    ]
    _give_roles(engines, roles)
    live, age = live_migration or LiveMigration(), age or TelemetryAge()
    cluster = Cluster(requests, placement, engines, fabric, live, clients, outages, age)
    return _run(cluster)


def _run(cluster: Cluster) -> ClusterRun:
    try:
        with uncollected():
            cluster.run()
    except KeyboardInterrupt as error:
        raise Interrupted(_outcome(cluster).timeline) from error
    return _outcome(cluster)


def _give_roles(engines: Sequence[Engine], roles: Sequence[Role] | None) -> None:
    if roles is not None and len(roles) != len(engines):
        raise ConfigError(f"roles are {len(roles)} for {len(engines)} instances; give one to each")
    for engine, role in zip(engines, roles or (), strict=False):
        engine.own_view.role = role


def _outcome(cluster: Cluster) -> ClusterRun:
    """Return what happened so far."""
    requests = cluster.sent_requests()
    parts = [
        engine.timeline(requests.take(rows))
        for engine, rows in zip(cluster.engines, cluster.rows_by_instance(), strict=True)
    ]
    moves = cluster.moves
    return ClusterRun(
        timeline=join_moved(requests, parts, cluster.rows, cluster.last_at, moves.counts),
        migrations=tuple(moves.migrations),
        num_aborted=moves.num_aborted,
        num_replaced=cluster.outages.num_replaced,
        num_fallbacks=cluster.outages.num_fallbacks,
        roles=tuple(cluster.roles),
    )
