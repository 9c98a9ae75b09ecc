"""Requests, a placement and instances in; the run of a cluster out."""

from collections.abc import Callable, Iterable, Sequence

from lengthwise.errors import ConfigError, require
from scheduler_adapters.placement import Placement
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.cluster.cluster import Cluster, ClusterRun
from scheduler_adapters.simulator.cluster.outages import Outage
from scheduler_adapters.simulator.cluster.placement_views import TelemetryAge
from scheduler_adapters.simulator.engine.engine import Engine, uncollected
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.simulator.simulate import EngineKind, Interrupted
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import Role
from scheduler_adapters.workload.requests import Requests


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
    outages: Sequence[Outage] = (),
    age: TelemetryAge | None = None,
    keeps_kv: bool = True,
    observers: Callable[[int], Iterable[EngineObserver]] = lambda instance: (),
) -> ClusterRun:
    """Serve `requests` on `instances` in virtual time; equal input, equal bytes.

    A request that the memory of its instance can never hold is rejected and reported.

    Args:
        make_policy: makes the policy of each instance.
        fabric: network between instances; needed where the placement moves requests.
        roles: first roles of the instances; None: both for all. An instance of role prefill hands
            its requests over once they have their first token.
        kind: that of `simulate`.
        clients: requests in flight, each replaced when it has finished; None: arrivals by time.
        outages: dead times of instances. Lost requests are placed again, at last at a recovery.
        age: age of the views of instances; None: they are up to date.
        keeps_kv: requests that move between phases take their KV along, or compute it again.
        observers: observers of each instance, by its number.

    Raises:
        ConfigError: there is no instance, no fabric for a move, or an outage that cannot be.
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
    cluster = Cluster(requests, placement, engines, fabric, clients, outages, age, keeps_kv)
    try:
        with uncollected():
            cluster.run()
    except KeyboardInterrupt as error:
        raise Interrupted(cluster.outcome().timeline) from error
    return cluster.outcome()
