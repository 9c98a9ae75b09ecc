"""Simulation of a cluster: requests, a placement and instances in; timeline and migrations out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lengthwise.errors import ConfigError, require
from scheduler_adapters.placement import Placement, SetRole
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.cluster.cluster import Cluster
from scheduler_adapters.simulator.cluster.outages import Outage
from scheduler_adapters.simulator.cluster.placement_views import TelemetryAge
from scheduler_adapters.simulator.cluster.request_migrations import LiveMigration
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
    """Result of a run."""

    timeline: Timeline
    """Timeline of all instances; `instance` is the last one of each request."""
    migrations: Sequence[Migration]
    """Migrations in the order in which they ended."""
    num_aborted: int
    """Live migrations that were aborted: the request had ended, was evicted, or found no room."""
    num_replaced: Ints
    """Number of repeated placements of each request, whose instance had failed."""
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

    A request that the memory of its instance can never hold is rejected and reported.

    Args:
        make_policy: makes the policy of each instance.
        fabric: network between instances; needed where the placement moves requests.
        roles: first roles of the instances; None: both for all. An instance of role prefill hands
            its requests over once they have their first token.
        kind, clients: those of `simulate`.
        live_migration: settings of live migrations; None: the defaults.
        outages: times in which instances are dead. Their requests are placed again; while all
            instances are dead, requests wait for the first recovery.
        age: age of the views of instances; None: they are up to date.
        observers: observers of each instance, by its number.

    Raises:
        ConfigError: there is no instance, no fabric where a request is to be moved, or an outage
            that cannot be.
        SchedulingError: requests are left when the last instance has failed for good.
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
    if roles is not None and len(roles) != len(engines):
        raise ConfigError(f"roles are {len(roles)} for {len(engines)} instances; give one to each")
    for engine, role in zip(engines, roles or (), strict=False):
        engine.own_view.role = role
    live, age = live_migration or LiveMigration(), age or TelemetryAge()
    cluster = Cluster(requests, placement, engines, fabric, live, clients, outages, age)
    try:
        with uncollected():
            cluster.run()
    except KeyboardInterrupt as error:
        raise Interrupted(_outcome(cluster).timeline) from error
    return _outcome(cluster)


def _outcome(cluster: Cluster) -> ClusterRun:
    """Return the result so far."""
    requests, group, migrations = cluster.requests, cluster.group, cluster.migrations
    parts = [
        engine.timeline(requests.take(np.array(rows, dtype=np.int64)))
        for engine, rows in zip(group.engines, group.rows, strict=True)
    ]
    return ClusterRun(
        timeline=join_moved(requests, parts, group.rows, group.last_at, migrations.counts),
        migrations=tuple(migrations.ended),
        num_aborted=migrations.num_aborted,
        num_replaced=cluster.outages.num_replaced,
        num_fallbacks=cluster.calls.num_fallbacks,
        roles=tuple(cluster.roles),
    )
