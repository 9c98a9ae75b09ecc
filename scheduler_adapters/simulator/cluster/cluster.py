"""Many simulated instances under one placement: `simulate_cluster`.

`Cluster` turns arrivals, ticks, snapshots and ends of phases into calls of the placement.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf

import numpy as np

from lengthwise.errors import ConfigError, InvalidDecision, SchedulingError, at_least, require
from scheduler_adapters.placement import Move, Placement, SetRole, overrides
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.cluster.clock import ClusterClock
from scheduler_adapters.simulator.cluster.instance_telemetry import Telemetry
from scheduler_adapters.simulator.cluster.outages import Outage, Outages
from scheduler_adapters.simulator.cluster.placement_calls import PlacementCalls
from scheduler_adapters.simulator.cluster.placement_views import InstanceViews, TelemetryAge
from scheduler_adapters.simulator.cluster.request_migrations import RequestMigrations
from scheduler_adapters.simulator.engine.engine import Engine, uncollected
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.simulator.engine.simulated_request import simulated_request
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.simulator.simulate import EngineKind, Interrupted
from scheduler_adapters.timeline.migrations import Migration, join_moved
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import RequestView, Role
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


class Cluster:
    """Several engines under one clock, and the events between them."""

    def __init__(
        self,
        requests: Requests,
        placement: Placement,
        engines: Sequence[Engine],
        fabric: Fabric | None,
        clients: int | None,
        outages: Sequence[Outage],
        age: TelemetryAge | None,
        keeps_kv: bool,
    ) -> None:
        self.keeps_kv, age = keeps_kv, age or TelemetryAge()
        at_least("clients", clients, 1)
        if clients is not None:  # 0 s for requests that are never sent
            requests = replace(requests, arrival_s=np.zeros(len(requests)))
        self.requests, self.placement, self.clients = requests, placement, clients
        thinks = overrides(placement, "at_phase_change") and len(engines) > 1
        hands_over = overrides(placement, "at_prefill_end")
        self.at_ends: tuple[Callable[[int, RequestState], None] | None, ...] = (
            self._end_thinking if thinks else None,
            self._end_prefill if hands_over else None,
            None if clients is None else lambda *_: self._expect_arrival(),
        )
        """Actions at the end of a thinking, of a prefill, and of a request."""
        heeds_ends = hands_over or clients is not None
        watches_phases = thinks or heeds_ends
        telemetry = [
            Telemetry(engine, placement.watch, watches_prefills=placement.watches_prefills)
            for engine in engines
        ]
        self.clock = ClusterClock(
            requests, telemetry, watches_phases=watches_phases, heeds_ends=heeds_ends
        )
        for instance in range(len(engines)) if watches_phases else ():
            engines[instance].observe(_PhaseEnds(self, instance))
        has_ticks = overrides(placement, "tick")
        has_snapshots = age.period_s > 0
        self.views = InstanceViews(
            self.clock, placement.watch, has_snapshots=has_snapshots, with_decodes=has_ticks
        )
        if has_snapshots:
            self._repeat(ClusterClock.SNAPSHOT, age.period_s, self.views.take_snapshot)
        self.calls = PlacementCalls(placement, self.views, age.max_age_s)
        self.migrations = RequestMigrations(self.calls, fabric)
        self.outages = Outages(self.migrations, outages)
        self.roles: list[tuple[float, SetRole]] = []
        """Changes of roles, with their times."""
        self.num_sent = 0
        """Requests that have arrived, or whose arrival is scheduled."""
        for _ in range(clients or 1):
            self._expect_arrival()
        if has_ticks:
            self._repeat(ClusterClock.TICKED, placement.tick_s, self._tick)

    def run(self) -> None:
        """Run all events and all steps."""
        self.clock.run()
        if unplaced := self.calls.unplaced:
            raise SchedulingError(
                f"{len(unplaced)} requests are left without an instance, first "
                f"{unplaced[0][1].request_id!r}: all {len(self.clock.engines)} are dead; "
                "let an outage end, or add an instance"
            )
        if prefilled := self.migrations.prefilled:
            raise InvalidDecision(
                f"placement {self.placement.name!r} left {len(prefilled)} prefilled requests in "
                f"their instances, first {prefilled[0].state.view.request_id!r}; name one for each"
            )

    def outcome(self) -> ClusterRun:
        """Return the result so far."""
        clock, migrations = self.clock, self.migrations
        parts = [
            engine.timeline(self.requests.take(np.array(rows, dtype=np.int64)))
            for engine, rows in zip(clock.engines, clock.rows, strict=True)
        ]
        return ClusterRun(
            timeline=join_moved(self.requests, parts, clock.rows, clock.last_at, migrations.counts),
            migrations=tuple(migrations.ended),
            num_aborted=migrations.num_aborted,
            num_replaced=self.outages.num_replaced,
            num_fallbacks=self.calls.num_fallbacks,
            roles=tuple(self.roles),
        )

    def _expect_arrival(self) -> None:
        """Schedule the next arrival: at its own time, or now that a client is free."""
        row = self.num_sent
        if row < len(self.requests):
            self.num_sent += 1
            if self.clients is not None:
                self.requests.arrival_s[row] = self.clock.now_s
            at_s = self.requests.arrival_s.item(row)
            self.clock.push(at_s, ClusterClock.ARRIVED, row, partial(self._arrive, row))

    def _arrive(self, row: int) -> None:
        simulated = simulated_request(self.requests, row)
        request = simulated.view(row)
        if simulated.score_delay_s:
            request.score = None  # not known yet
        is_accepted = self.calls.place(row, request, None)
        if self.clients is not None and not is_accepted:
            self.requests.arrival_s[row] = 0.0
        if self.clients is None or not is_accepted:
            self._expect_arrival()

    def _repeat(
        self, kind: int, period_s: float, action: Callable[[], None], number: int = 0
    ) -> None:
        """Run an action at every multiple of a period, as long as it may matter."""

        def run() -> None:
            action()
            self.migrations.hand_over_prefilled()
            if self._is_pending():
                self._repeat(kind, period_s, action, number + 1)

        self.clock.push(number * period_s, kind, number, run)

    def _is_pending(self) -> bool:
        """Return whether anything is pending for which the next tick or snapshot may matter."""
        for instance in range(len(self.clock.engines)):
            self.clock.current(instance)
        # A tick matters to a snapshot, but not the other way round. Failures alone do not matter,
        # and recoveries matter only to requests without a place.
        idle = {ClusterClock.LANDED, ClusterClock.FAILED, ClusterClock.SNAPSHOT}
        if not (self.calls.unplaced or self.migrations.prefilled):
            idle.add(ClusterClock.RECOVERED)
        is_expected = any(kind not in idle for _, kind, *_ in self.clock.events)
        return is_expected or bool(self.migrations.under_way) or min(self.clock.next_s) < inf

    def _tick(self) -> None:
        for change in self.calls.ask("tick", self.clock.now_s) if self.views.shown else ():
            if isinstance(change, SetRole):
                self._set_role(change)
            elif isinstance(change, Move):
                self._move(change)
            else:
                raise self._invalid_tick(change, "use Move and SetRole")

    def _invalid_tick(self, change: object, advice: str) -> InvalidDecision:
        name = self.placement.name
        return InvalidDecision(f"placement {name!r} answered a tick with {change!r}; {advice}")

    def _set_role(self, change: SetRole) -> None:
        is_living = self.calls.is_living(change.instance)
        if not is_living or change.role not in ("prefill", "decode", "both"):
            advice = "name an instance and one of the roles prefill, decode and both"
            raise self._invalid_tick(change, advice)
        self.views.set_role(change.instance, change.role)
        self.roles.append((self.clock.now_s, change))

    @cached_property
    def _row_of(self) -> dict[str, int]:
        """Rows by id: ticks move requests by id."""
        return {name: row for row, name in enumerate(self.requests.request_id.tolist())}

    def _move(self, move: Move) -> None:
        """Move a request, unless it has finished or is being moved."""
        row = self._row_of.get(move.request_id, -1)
        if row < 0 or self.clock.last_at[row, 0] < 0:
            raise self._invalid_tick(move, "it has not arrived; move a request that was placed")
        if move.how not in ("copy", "live", "recompute"):
            raise self._invalid_tick(move, "use how='copy', 'live' or 'recompute'")
        instance, own_row = self.clock.last_at[row].tolist()
        state = self.clock.current(instance).requests[own_row]
        self.calls.check(move.to, state.view)
        under_way = self.migrations.under_way.values()
        if state.is_gone or move.to == instance or any(one.state is state for one in under_way):
            return
        if move.how == "live":
            self.migrations.send_live(instance, state, move.to)
        else:
            stopped = self.migrations.take_out(instance, state, keeps_kv=move.how == "copy")
            self.migrations.send(stopped, move.to)

    def _end_thinking(self, instance: int, state: RequestState) -> None:
        """Move a request that ended its thinking to where it is to answer."""
        if not state.is_gone:  # a tick may have moved it during the step
            view = state.sync_view()
            self.views.thinking_ended(instance, state)
            self._send_on(instance, state, self.calls.ask("at_phase_change", view, instance))

    def _send_on(self, instance: int, state: RequestState, chosen: int) -> None:
        self.calls.check(chosen, state.view)
        if chosen != instance:
            taken = self.migrations.take_out(instance, state, keeps_kv=self.keeps_kv)
            self.migrations.send(taken, chosen)

    def _end_prefill(self, instance: int, state: RequestState) -> None:
        """Hand over a request whose prefill ended, if its instance hands requests over."""
        role = self.clock.engines[instance].own_view.role
        if not state.is_gone and role == "prefill":
            self.migrations.keep_prefilled(self.migrations.take_out(instance, state))
        elif not state.is_gone and role in self.placement.hands_over_from:
            chosen = self.calls.ask("at_prefill_end", state.sync_view(), instance)
            if chosen is not None:
                self._send_on(instance, state, chosen)
        self.migrations.hand_over_prefilled()


class _PhaseEnds(EngineObserver):
    """Stops an engine at the end of a step in which the phase of a request ends."""

    def __init__(self, cluster: Cluster, instance: int) -> None:
        self.clock, self.instance, self.actions = cluster.clock, instance, cluster.at_ends

    def _stop(self, request: RequestView, now_s: float, end: int) -> None:
        if (action := self.actions[end]) is not None:
            engine = self.clock.engines[self.instance]
            act = partial(action, self.instance, engine.requests[request.number])
            second = len(self.actions) * request.number + end
            self.clock.push(now_s, self.clock.PHASE_ENDED, self.instance, act, second=second)
            engine.stop()

    def thinking_ended(self, request: RequestView, now_s: float) -> None:
        self._stop(request, now_s, 0)

    def prefill_ended(self, request: RequestView, now_s: float) -> None:
        self._stop(request, now_s, 1)

    def finished(self, request: RequestView, now_s: float) -> None:
        self._stop(request, now_s, 1)
        self._stop(request, now_s, 2)


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
