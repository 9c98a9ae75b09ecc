"""A handler for each kind of event of a cluster; `clock.py` has the loop that calls them."""

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from lengthwise.errors import InvalidDecision, SchedulingError, require
from scheduler_adapters.placement import Move, Placement, SetRole, overrides
from scheduler_adapters.simulator.cluster.clock import (
    ARRIVED,
    FAILED,
    LANDED,
    PHASE_ENDED,
    RECOVERED,
    SNAPSHOT,
    STARTED,
    TICKED,
    ClusterClock,
)
from scheduler_adapters.simulator.cluster.cluster_instance import ClusterInstance
from scheduler_adapters.simulator.cluster.outages import Outage, in_order
from scheduler_adapters.simulator.cluster.placement_views import (
    InstanceViews,
    PlacementCalls,
    TelemetryAge,
)
from scheduler_adapters.simulator.cluster.request_migrations import RequestMigrations
from scheduler_adapters.simulator.engine.arrivals import (
    request_state,
    request_states,
    request_views,
)
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.timeline.migrations import Migration, join_moved
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import Phase, RequestView
from scheduler_adapters.workload.requests import Ints, Requests

_PART = 1024
"""Requests whose state is made ahead of their arrival."""


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


class _Placed(NamedTuple):
    """A request to be placed."""

    row: int
    state: RequestState
    view: RequestView
    """View for the placement; that of the state, if the request was lost with its instance."""


class Cluster:
    """Instances under one placement: a handler for each kind of event."""

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
        self.keeps_kv, self.age = keeps_kv, age or TelemetryAge()
        require("clients", clients, clients is None or clients >= 1, "1 or more")
        if clients is not None:  # 0 s for requests that are never sent
            requests = replace(requests, arrival_s=np.zeros(len(requests)))
        self.requests, self.placement, self.clients = requests, placement, clients
        thinks = overrides(placement, "at_phase_change") and len(engines) > 1
        hands_over = overrides(placement, "at_prefill_end")
        is_reported = thinks, hands_over, clients is not None
        self.at_ends = (self._end_thinking, self._end_prefill, lambda *_: self._expect_arrival())
        self.instances = [
            ClusterInstance(engine, placement.watch, watches_prefills=placement.watches_prefills)
            for engine in engines
        ]
        heeds_ends = hands_over or clients is not None
        self.clock = ClusterClock(
            self.instances, watches_phases=thinks or heeds_ends, heeds_ends=heeds_ends
        )
        for instance in self.instances if any(is_reported) else ():
            instance.engine.observe(_PhaseEnds(self.clock, instance, is_reported))
        has_ticks, has_snapshots = overrides(placement, "tick"), self.age.period_s > 0
        self.views = InstanceViews(
            self.clock, placement.watch, has_snapshots=has_snapshots, with_decodes=has_ticks
        )
        self.calls = PlacementCalls(placement, self.views, self.age.max_age_s)
        self.migrations = RequestMigrations(self.clock, self.calls, fabric, self._submit_moved)
        self.unplaced: deque[_Placed] = deque()
        """Requests placed when an instance recovers."""
        self.num_replaced = np.zeros(len(requests), dtype=np.int64)
        self.roles: list[tuple[float, SetRole]] = []
        self.last_instance, self.last_row = (array("q", [-1]) * len(requests) for _ in range(2))
        """Last instance of each request, and its row there."""
        self.coming = enumerate(_in_parts(requests))
        for _ in range(clients or 1):
            self._expect_arrival()
        for one in in_order(outages, len(engines)):
            self.clock.push(one.at_s, FAILED, one.instance, one.instance)
            if one.until_s < inf:
                self.clock.push(one.until_s, RECOVERED, one.instance, one.instance)
        if has_snapshots:
            self.clock.push(0.0, SNAPSHOT, 0, 0)
        if has_ticks:
            self.clock.push(0.0, TICKED, 0, 0)

    def run(self) -> None:
        """Run all events and all steps."""
        handlers: dict[int, Callable[[Any], None]] = {
            LANDED: self.migrations.land,
            STARTED: self.migrations.start,
            RECOVERED: self._recover,
            FAILED: self._fail,
            SNAPSHOT: self._take_snapshot,
            PHASE_ENDED: lambda ended: self.at_ends[ended[0]](*ended[1:]),
            ARRIVED: self._arrive,
            TICKED: self._tick,
        }
        self.clock.run(handlers)
        if unplaced := self.unplaced:
            raise SchedulingError(
                f"{len(unplaced)} requests are left without an instance, first "
                f"{unplaced[0].view.request_id!r}: all {len(self.instances)} are dead; "
                "let an outage end, or add an instance"
            )
        if prefilled := self.migrations.prefilled:
            raise InvalidDecision(
                f"placement {self.placement.name!r} left {len(prefilled)} prefilled requests in "
                f"their instances, first {prefilled[0].state.view.request_id!r}; name one for each"
            )

    def outcome(self) -> ClusterRun:
        """Return the result so far."""
        migrations, rows = self.migrations, [instance.rows for instance in self.instances]
        parts = [
            one.engine.timeline(self.requests.take(np.array(one.rows, dtype=np.int64)))
            for one in self.instances
        ]
        counts = np.zeros(len(self.requests), dtype=np.int64)
        counts[list(migrations.counts)] = list(migrations.counts.values())
        last_at = np.column_stack([self.last_instance, self.last_row])
        return ClusterRun(
            timeline=join_moved(self.requests, parts, rows, last_at, counts),
            migrations=tuple(migrations.ended),
            num_aborted=migrations.num_aborted,
            num_replaced=self.num_replaced,
            num_fallbacks=self.calls.num_fallbacks,
            roles=tuple(self.roles),
        )

    def _expect_arrival(self) -> None:
        """Schedule the next arrival: at its own time, or now that a client is free."""
        row, coming = next(self.coming, (-1, None))
        if coming is None:
            return
        state, view = coming
        if self.clients is not None:
            now_s = self.clock.now_s
            self.requests.arrival_s[row] = view.arrival_s = now_s
            state.view.arrival_s = state.joins_s = now_s
        self.clock.push(view.arrival_s, ARRIVED, row, _Placed(row, state, view))

    def _arrive(self, request: _Placed) -> None:
        if request.state.score_delay_s:
            request.view.score = None  # not known yet
        is_accepted = self._place(request)
        if self.clients is not None and not is_accepted:
            self.requests.arrival_s[request.row] = 0.0
        if self.clients is None or not is_accepted:
            self._expect_arrival()

    def _place(self, request: _Placed) -> bool:
        """Place a request, or keep it until an instance recovers; return whether it is accepted.

        It is rejected if the memory of its instance can never hold it.
        """
        row, state, view = request
        view.phase = Phase.WAITING
        now_s = self.clock.now_s
        if view.arrival_s < now_s:
            view.last_token_s = now_s  # tells the placement the present time
            state.joins_s = max(state.joins_s, now_s)
        if not self.views.shown:
            self.unplaced.append(request)
            return True
        chosen = self.calls.place(view)
        if view is state.view:  # lost by an instance that failed
            state.kv_tokens = 0
            self._submit_moved(row, chosen, state)
            return True
        return self._submit(row, chosen, state, None)

    def _submit(
        self, row: int, number: int, state: RequestState, carried: RequestState | None
    ) -> bool:
        """Submit a request to an instance; return whether its memory can ever hold the request."""
        instance = self.instances[number]
        self.last_instance[row], self.last_row[row] = number, len(instance.rows)
        is_held = instance.submit(row, state, carried)
        self.clock.changed(number)
        return is_held

    def _submit_moved(self, row: int, number: int, carried: RequestState) -> None:
        """Submit a request with its progress; raise `InvalidDecision` where it can never fit."""
        if not self._submit(row, number, request_state(self.requests, row), carried):
            raise InvalidDecision(
                f"placement {self.placement.name!r} moved request "
                f"{carried.view.request_id!r} to instance {number}, whose "
                "memory can never hold it; choose a larger one"
            )

    def _fail(self, number: int) -> None:
        self.views.set_living(number, False)
        lost = self.migrations.lose(number)
        engine, rows = self.clock.current(number), self.instances[number].rows
        for state in [state for state in engine.requests if not state.is_gone]:
            lost.append((rows[state.row], state))
            engine.withdraw(state)
        self.clock.changed(number)
        for row, state in sorted(lost, key=itemgetter(0)):
            self.num_replaced[row] += 1
            self._place(_Placed(row, state, state.view))

    def _recover(self, number: int) -> None:
        self.views.set_living(number, True)
        for _ in range(len(self.unplaced)):
            self._place(self.unplaced.popleft())
        self.migrations.hand_over_prefilled()

    def _take_snapshot(self, number: int) -> None:
        self.views.take_snapshot()
        self._repeat(SNAPSHOT, self.age.period_s, number + 1)

    def _repeat(self, kind: int, period_s: float, number: int) -> None:
        """Schedule the next tick or snapshot, as long as it may matter."""
        self.migrations.hand_over_prefilled()
        for instance in range(len(self.instances)):
            self.clock.current(instance)
        # A tick matters to a snapshot, but not the other way round. Failures alone do not matter,
        # and recoveries matter only to requests without a place.
        idle = {LANDED, FAILED, SNAPSHOT}
        if not (self.unplaced or self.migrations.prefilled):
            idle.add(RECOVERED)
        is_expected = any(kind not in idle for _, kind, *_ in self.clock.events)
        next_s = min(instance.next_s for instance in self.instances)
        if is_expected or self.migrations.under_way or next_s < inf:
            self.clock.push(number * period_s, kind, number, number)

    def _tick(self, number: int) -> None:
        for change in self.calls.ask("tick", self.clock.now_s) if self.views.shown else ():
            if isinstance(change, SetRole):
                self._set_role(change)
            elif isinstance(change, Move):
                self._move(change)
            else:
                raise self._invalid_tick(change, "use Move and SetRole")
        self._repeat(TICKED, self.placement.tick_s, number + 1)

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
        if row < 0 or self.last_instance[row] < 0:
            raise self._invalid_tick(move, "it has not arrived; move a request that was placed")
        if move.how not in ("copy", "live", "recompute"):
            raise self._invalid_tick(move, "use how='copy', 'live' or 'recompute'")
        instance = self.last_instance[row]
        state = self.clock.current(instance).requests[self.last_row[row]]
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
        role = self.instances[instance].view.role
        if not state.is_gone and role == "prefill":
            self.migrations.keep_prefilled(self.migrations.take_out(instance, state))
        elif not state.is_gone and role in self.placement.hands_over_from:
            chosen = self.calls.ask("at_prefill_end", state.sync_view(), instance)
            if chosen is not None:
                self._send_on(instance, state, chosen)
        self.migrations.hand_over_prefilled()


class _PhaseEnds(EngineObserver):
    """Stops an engine at the end of a step in which the phase of a request ends.

    `is_reported` are the ends that are events: of a thinking, of a prefill, of a request.
    """

    def __init__(
        self, clock: ClusterClock, instance: ClusterInstance, is_reported: Sequence[bool]
    ) -> None:
        self.clock, self.is_reported = clock, is_reported
        self.engine, self.number = instance.engine, instance.number

    def _stop(self, request: RequestView, now_s: float, end: int) -> None:
        if self.is_reported[end]:
            ended = end, self.number, self.engine.requests[request.number]
            second = len(self.is_reported) * request.number + end
            self.clock.push(now_s, PHASE_ENDED, self.number, ended, second=second)
            self.engine.stop()

    def thinking_ended(self, request: RequestView, now_s: float) -> None:
        self._stop(request, now_s, 0)

    def prefill_ended(self, request: RequestView, now_s: float) -> None:
        self._stop(request, now_s, 1)

    def finished(self, request: RequestView, now_s: float) -> None:
        self._stop(request, now_s, 1)
        self._stop(request, now_s, 2)


def _in_parts(requests: Requests) -> Iterator[tuple[RequestState, RequestView]]:
    """Yield requests with their views for a placement, which may keep these.

    A large run keeps only a part of the requests that have yet to arrive.
    """
    for first in range(0, len(requests), _PART):
        part = requests.take(slice(first, first + _PART))
        yield from zip(request_states(part, first), request_views(part, first), strict=True)
