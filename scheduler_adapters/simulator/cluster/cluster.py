"""The clock of several instances, and the events between them.

Order of events: by time; at one time transfers that land, then such as start, then instances that
come, then such as die, then a snapshot of all, then phases that end (thinking, prefill and, where
prefills are handed over or clients wait, requests), then arrivals, then the tick; of one kind by
instance and number. Steps that start at that time start afterwards.

A decision at time t sees every instance as it is after all its steps that started before t. For
arrivals and ticks `Engine.advance(t)` does that. A phase ends at the end of a step, and only the
step itself shows when. So the instance in which a phase may end first runs first, and only up to
the earliest time at which one may end elsewhere (`Engine.quiet_until_s`): when a phase does end, at
e, no other instance has begun a step at e or later, and each is then advanced to e.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from heapq import heappop, heappush
from math import inf, nextafter
from typing import Any

import numpy as np

from lengthwise.errors import InvalidDecision, LengthwiseError, at_least
from scheduler_adapters.placement import Move, Placement, SetRole
from scheduler_adapters.simulator.cluster.moves import LANDED, LiveMigration, Moves
from scheduler_adapters.simulator.cluster.outages import CAME, DIED, Outage, Outages
from scheduler_adapters.simulator.cluster.seen import (
    SNAPSHOT,
    InstanceViews,
    QueueLength,
    Snapshots,
    TelemetryAge,
)
from scheduler_adapters.simulator.cluster.telemetry import Telemetry
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.request_state import (
    Carried,
    RequestState,
    SimulatedRequest,
    simulated_request,
)
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import Ints, Requests

_PHASE_ENDED, _ARRIVED, _TICKED = range(5, 8)
"""Kinds of events in the order in which they happen at one time, after those of `moves.py`,
`outages.py` and `seen.py`."""


class Cluster:
    """Several engines under one clock."""

    def __init__(
        self,
        requests: Requests,
        placement: Placement,
        engines: Sequence[Engine],
        fabric: Fabric | None,
        live_migration: LiveMigration,
        clients: int | None,
        outages: Sequence[Outage],
        age: TelemetryAge,
    ) -> None:
        self.requests = requests
        self.arrival_s = requests.arrival_s.copy()
        """When each request arrives; of clients, when it is sent."""
        self.placement = placement
        self.engines = engines
        self.telemetry = [
            Telemetry(engine, placement.watch, watches_prefills=placement.watches_prefills)
            for engine in engines
        ]
        self.now_s = 0.0
        self.events: list[tuple[float, int, int, int, Callable[[], None]]] = []
        """Heap of (time, kind, number, number, what happens then)."""
        self.next_s = [-inf] * len(engines)
        """When the next step starts, by instance; -inf where that is to be found out."""
        self.quiet_s = [-inf] * len(engines)
        """Up to when no phase ends there, whatever its steps do; -inf where that is not known."""
        self.quiet: list[tuple[float, int, int]] = []
        """Heap of (no phase ends up to this time, instance, its version); others are void."""
        self.versions = [0] * len(engines)
        self.rows: list[list[int]] = [[] for _ in engines]
        """By instance the requests that came to it, in order: rows of the engine."""
        self.last_at = np.full((len(requests), 2), -1)
        """Where each request was last: instance, and row of its engine."""
        self.roles: list[tuple[float, SetRole]] = []
        self.views = InstanceViews(self)
        if age.period_s:
            with_decodes = overrides(placement, "tick")
            self.views = Snapshots(self, age.period_s, with_decodes=with_decodes)
        self.max_age_s = age.max_age_s
        self.moves = Moves(self, fabric, live_migration)
        self.outages = Outages(self, outages)
        self.hands_over = overrides(placement, "at_prefill_end")
        self.clients = clients
        self.sent_s = np.zeros(len(requests))
        """When clients have sent each request; 0 for those that they have not."""
        self._observe()
        self.num_sent = 0
        """Requests that have arrived, or are about to."""
        if clients is not None:
            at_least("clients", clients, 1)
        for _ in range(clients or 1):
            self._expect_arrival()
        if overrides(placement, "tick"):
            self._expect_tick(0)

    def _observe(self) -> None:
        """Let engines stop at the end of a step in which something happens that others wait for."""
        thinks = overrides(self.placement, "at_phase_change") and len(self.engines) > 1
        self.heeds_ends = self.hands_over or self.clients is not None
        self.watches_phases = thinks or self.heeds_ends
        for instance, engine in enumerate(self.engines):
            if thinks:
                engine.observe(_ThinkingEnds(self, instance))
            if self.hands_over:
                engine.observe(_HandOvers(self, instance))
            if self.clients is not None:
                engine.observe(_Ends(self, instance))

    def run(self) -> None:
        """Let everything happen."""
        while True:
            at_s = self._advance_to_next_event()
            if at_s == inf:
                break
            self.now_s = at_s
            while self.events and self.events[0][0] == at_s:
                heappop(self.events)[-1]()
        for engine in self.engines:
            engine.advance(inf)
        self.outages.refuse_homeless()
        if parked := self.moves.parked:
            raise InvalidDecision(
                f"placement {self.placement.name!r} left {len(parked)} prefilled requests in their "
                f"instances, first {parked[0].live.view.request_id!r}; name one for each"
            )

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Rows by id, for ticks, which move requests by id."""
        return {name: row for row, name in enumerate(self.requests.request_id.tolist())}

    def push(
        self, at_s: float, kind: int, number: int, second: int, action: Callable[[], None]
    ) -> None:
        """Let something happen; of equal times and kinds the lesser numbers go first."""
        heappush(self.events, (at_s, kind, number, second, action))

    def _advance_to_next_event(self) -> float:
        """Run the instances in which a phase may end before the next event; return its time."""
        events, quiet, versions = self.events, self.quiet, self.versions
        while True:
            at_s = events[0][0] if events else inf
            while quiet and versions[quiet[0][1]] != quiet[0][2]:
                heappop(quiet)
            if not quiet or quiet[0][0] >= at_s:
                return at_s
            _, instance, _ = heappop(quiet)
            self.quiet_s[instance] = -inf
            # The step that is next here may always be run: elsewhere none starts earlier.
            others_s = max(quiet[0][0] if quiet else inf, nextafter(self.next_s[instance], inf))
            self.advance(instance, min(at_s, others_s))

    def advance(self, instance: int, until_s: float) -> None:
        """Run an instance's steps that start before `until_s`."""
        engine = self.engines[instance]
        next_s = self.next_s[instance] = engine.advance(until_s)
        self.views.outdated.add(instance)
        if self.watches_phases and next_s >= self.quiet_s[instance]:
            self.versions[instance] += 1
            quiet_s = engine.quiet_until_s(next_s, heeds_ends=self.heeds_ends)
            self.quiet_s[instance] = quiet_s
            if quiet_s < inf:
                heappush(self.quiet, (quiet_s, instance, self.versions[instance]))

    def engine(self, instance: int) -> Engine:
        """Return an engine that has begun all its steps before now, to do something to it.

        A stalled one notes the time: what it can do afterwards it does not do earlier.
        """
        engine = self.engines[instance]
        if self.next_s[instance] < self.now_s or engine.is_stalled:
            self.advance(instance, self.now_s)
        return engine

    def touched(self, instance: int) -> None:
        """Note that something was done to an engine from outside."""
        self.next_s[instance] = self.quiet_s[instance] = -inf
        self.views.outdated.add(instance)
        if self.watches_phases:
            self.advance(instance, self.now_s)

    def book(self, instance: int, live: RequestState, blocks: int, *, sign: int = 1) -> None:
        """Book a request that is on its way to an instance; `sign` -1 takes it back."""
        self.telemetry[instance].book(live, blocks, sign=sign)
        if sign > 0:
            self.views.booked(instance, live, blocks)
        self.views.outdated.add(instance)

    def _expect_arrival(self) -> None:
        """Let the next request arrive: when it does by itself, or now that a client is free."""
        row = self.num_sent
        if row < len(self.requests):
            self.num_sent += 1
            if self.clients is not None:
                self.arrival_s[row] = self.now_s
            self.push(self.arrival_s.item(row), _ARRIVED, row, 0, partial(self._arrive, row))

    def _simulated(self, row: int) -> SimulatedRequest:
        request = simulated_request(self.requests, row)
        if self.clients is None:
            return request
        return request._replace(arrival_s=self.arrival_s.item(row))

    def _arrive(self, row: int) -> None:
        simulated = self._simulated(row)
        request = simulated.view(row)
        if simulated.score_delay_s:
            request.score = None  # not known yet
        is_held = self.outages.place(row, request, None)
        if is_held:
            self.sent_s[row] = simulated.arrival_s
        if self.clients is None or not is_held:
            self._expect_arrival()

    def _expect_tick(self, number: int) -> None:
        at_s = number * self.placement.tick_s
        self.push(at_s, _TICKED, number, 0, partial(self._tick, number))

    def _tick(self, number: int) -> None:
        for change in self.ask("tick", self.now_s) if self.views.shown else ():
            if isinstance(change, SetRole):
                self._set_role(change)
            elif isinstance(change, Move):
                self._obey(change)
            else:
                raise InvalidDecision(
                    f"placement {self.placement.name!r} answered a tick with {change!r}; use Move "
                    "and SetRole"
                )
        self.moves.hand_over_parked()
        if self.is_pending():
            self._expect_tick(number + 1)

    def is_pending(self) -> bool:
        """Return whether something is to come that the next tick or snapshot may matter to."""
        for instance in range(len(self.engines)):
            self.engine(instance)
        # A tick is to a snapshot, but not the other way round. Deaths are not by themselves, and
        # comings only to those who wait for a place.
        idle = {LANDED, DIED, SNAPSHOT}
        if not (self.outages.homeless or self.moves.parked):
            idle.add(CAME)
        is_expected = any(kind not in idle for _, kind, *_ in self.events)
        return is_expected or bool(self.moves.under_way) or min(self.next_s) < inf

    @property
    def is_blind(self) -> bool:
        """Whether the views are too old for the placement to decide."""
        return self.views.age_s > self.max_age_s

    def ask(self, question: str, *about: Any) -> Any:
        """Return the answer of the placement, or of what decides where its views are too old.

        Raises:
            InvalidDecision: the placement raised.
        """
        decider = _FALLBACK if self.is_blind else self.placement
        try:
            return getattr(decider, question)(*about, self.views)
        except LengthwiseError:
            raise
        except Exception as error:
            raise InvalidDecision(
                f"placement {decider.name!r} failed in {question}(), at {self.now_s} s: "
                f"{type(error).__name__}: {error}; correct it"
            ) from error

    def _set_role(self, change: SetRole) -> None:
        if not self._is_there(change.instance) or change.role not in ("prefill", "decode", "both"):
            raise InvalidDecision(
                f"placement {self.placement.name!r} answered {change}; name an instance and one of "
                "the roles prefill, decode and both"
            )
        for view in (self.engines[change.instance].own_view, self.views.by_number[change.instance]):
            view.role = change.role
        self.roles.append((self.now_s, change))

    def _obey(self, move: Move) -> None:
        """Move a request as a tick has it; not one that has finished or is being moved."""
        row = self.row_of.get(move.request_id, -1)
        if row < 0 or self.last_at[row, 0] < 0:
            raise InvalidDecision(
                f"placement {self.placement.name!r} moved request {move.request_id!r} to instance "
                f"{move.to}, and it has not arrived; move one that was placed"
            )
        if move.how not in ("copy", "live", "recompute"):
            raise InvalidDecision(
                f"placement {self.placement.name!r} answered {move}; use how='copy', 'live' or "
                "'recompute'"
            )
        instance, own_row = self.last_at[row].tolist()
        live = self.engine(instance).requests[own_row]
        self.check(move.to, live.view)
        if live.is_gone or move.to == instance or self.moves.is_moved_live(live):
            return
        if move.how == "live":
            self.moves.send_live(instance, live, move.to)
        else:
            keeps_kv = move.how == "copy"
            self.moves.send(self.moves.take_out(instance, live, keeps_kv=keeps_kv), move.to)

    def submit(self, row: int, instance: int, carried: Carried | None) -> bool:
        """Hand a request to an instance; returns whether that can ever hold it."""
        engine, own_rows = self.engines[instance], self.rows[instance]
        is_held = engine.submit(self._simulated(row), carried=carried)
        self.last_at[row] = instance, len(own_rows)
        own_rows.append(row)
        self.telemetry[instance].submitted(engine.requests[-1])
        self.touched(instance)
        return is_held

    def submit_moved(self, row: int, instance: int, carried: Carried) -> None:
        """Hand over a request with its progress; raise `InvalidDecision` where it can never fit."""
        if not self.submit(row, instance, carried):
            raise InvalidDecision(
                f"placement {self.placement.name!r} moved request "
                f"{self._simulated(row).request_id!r} to instance {instance}, whose memory "
                "can never hold it; choose a larger one"
            )

    def check(self, chosen: object, request: RequestView) -> None:
        """Raise `InvalidDecision` where a placement has not named an instance."""
        if not self._is_there(chosen):
            raise InvalidDecision(
                f"placement {self.placement.name!r} sent request {request.request_id!r} to "
                f"instance {chosen!r}; name one of the views that it was given"
            )

    def _is_there(self, chosen: object) -> bool:
        if not isinstance(chosen, int) or not 0 <= chosen < len(self.engines):
            return False
        return self.outages.is_living[chosen]

    def end_phase(self, instance: int, live: RequestState) -> None:
        """Ask where a request is to answer that ended its thinking just now, and move it there.

        Not of one that a tick has moved during the step.
        """
        if live.is_gone:
            return
        view = live.sync_view()
        self.views.thinking_ended(instance, live)
        chosen = self.ask("at_phase_change", view, instance)
        self.check(chosen, view)
        if chosen != instance:
            self.moves.send(self.moves.take_out(instance, live), chosen)

    def end_prefill(self, instance: int, live: RequestState) -> None:
        """Let a request wait for the place where it goes on, if its instance only prefills."""
        role = self.engines[instance].own_view.role
        if not live.is_gone and role == "prefill":
            self.moves.parked.append(self.moves.take_out(instance, live))
        elif not live.is_gone and role in self.placement.hands_over_from:
            view = live.sync_view()
            chosen = self.ask("at_prefill_end", view, instance)
            if chosen is not None and chosen != instance:
                self.check(chosen, view)
                self.moves.send(self.moves.take_out(instance, live), chosen)
        self.moves.hand_over_parked()

    def free_client(self, instance: int, live: RequestState) -> None:
        """Let the client of a request that has finished send the next one."""
        self._expect_arrival()

    def sent_requests(self) -> Requests:
        """Return the requests; those of clients with the times at which they were sent."""
        if self.clients is None:
            return self.requests
        return replace(self.requests, arrival_s=self.sent_s)

    def rows_by_instance(self) -> list[Ints]:
        """Return the requests that came to each instance, by row of its engine."""
        return [np.array(rows, dtype=np.int64) for rows in self.rows]


_FALLBACK = QueueLength()


class _Stops(EngineObserver):
    """Stops an engine at the end of a step in which something happens that concerns others."""

    def __init__(self, cluster: Cluster, instance: int) -> None:
        self.cluster = cluster
        self.instance = instance

    def stop(
        self,
        request: RequestView,
        now_s: float,
        order: int,
        then: Callable[[int, RequestState], None],
    ) -> None:
        engine = self.cluster.engines[self.instance]
        live = engine.requests[request.number]
        action = partial(then, self.instance, live)
        self.cluster.push(now_s, _PHASE_ENDED, self.instance, 3 * live.row + order, action)
        engine.stop()


class _ThinkingEnds(_Stops):
    def thinking_ended(self, request: RequestView, now_s: float) -> None:
        self.stop(request, now_s, 0, self.cluster.end_phase)


class _HandOvers(_Stops):
    """Tells of prefills that are done, and of requests that leave room for others."""

    def prefill_ended(self, request: RequestView, now_s: float) -> None:
        self.stop(request, now_s, 1, self.cluster.end_prefill)

    def finished(self, request: RequestView, now_s: float) -> None:
        self.stop(request, now_s, 1, self.cluster.end_prefill)


class _Ends(_Stops):
    def finished(self, request: RequestView, now_s: float) -> None:
        self.stop(request, now_s, 2, self.cluster.free_client)


def overrides(placement: Placement, method: str) -> bool:
    """Return whether a placement has its own `method`."""
    return getattr(type(placement), method) is not getattr(Placement, method)
