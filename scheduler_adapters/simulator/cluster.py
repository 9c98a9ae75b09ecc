"""Many simulated instances under one clock: a placement says which of them serves a request.

Order of events: by time; at one time transfers that land, then such as start, then phases that end
(thinking, prefill and, where prefills are handed over, requests), then arrivals, then the tick; of
one kind by instance and number. Steps that start at that time start afterwards.

A decision at time t sees every instance as it is after all its steps that started before t. For
arrivals and ticks `Engine.advance(t)` does that. A phase ends at the end of a step, and only the
step itself shows when. So the instance in which a phase may end first runs first, and only up to
the earliest time at which one may end elsewhere (`Engine.quiet_until_s`): when a phase does end, at
e, no other instance has begun a step at e or later, and each is then advanced to e.

Not exact yet: moves at a `tick`. In a few of 500 random clusters a moved request's times are other
than those of the reference in `tests/`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from math import inf, nextafter
from typing import NamedTuple, overload

import numpy as np

from scheduler_adapters.placement import Move, Placement, SetRole
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine.engine import Engine, uncollected
from scheduler_adapters.simulator.engine.live import Carried, Live, simulated_requests
from scheduler_adapters.simulator.engine.vllm_habits import VllmHabits
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.links import Fabric, Transfers
from scheduler_adapters.simulator.simulate import EngineKind, Interrupted
from scheduler_adapters.simulator.telemetry import Telemetry
from scheduler_adapters.timeline.migrations import Migration, join_moved
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import InstanceView, RequestView, Role
from scheduler_adapters.workload.requests import Requests
from scoring_service.errors import ConfigError, InvalidDecision, require

_LANDED, _STARTED, _PHASE_ENDED, _ARRIVED, _TICKED = range(5)
"""Kinds of events, in the order in which they happen at one time."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClusterRun:
    """What came of a run."""

    timeline: Timeline
    """Of all instances; `instance` is where a request was last."""
    migrations: Sequence[Migration]
    """In the order in which they landed."""
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
    observers: Callable[[int], Iterable[EngineObserver]] = lambda instance: (),
    skip_ahead: bool = True,
) -> ClusterRun:
    """Serve `requests` on `instances` in virtual time; equal input, equal bytes.

    A request that cannot be held by the instance where it is placed is rejected and reported.

    Args:
        make_policy: makes the policy of each instance.
        fabric: the network between instances; needed where the placement moves requests.
        roles: of the instances at first; both for all where it is None. An instance of role prefill
            hands its requests over when they have their first token.
        kind: that of `simulate`.
        observers: of each instance, by its number.
        skip_ahead: only changes how long a run takes.

    Raises:
        ConfigError: there is no instance, or no fabric where a request is to be moved.
        InvalidDecision: the placement named an instance that is not there, or a policy failed.
        Interrupted: Ctrl-C; holds the timeline so far.
        As `simulate` does for each instance.
    """
    require("instances", len(instances), bool(instances), "one or more")
    engines = [
        Engine(
            make_policy(),
            instance,
            habits=VllmHabits() if kind == "vllm" else None,
            instance_id=number,
            observers=observers(number),
            skip_ahead=skip_ahead,
        )
        for number, instance in enumerate(instances)
    ]
    if roles is not None and len(roles) != len(instances):
        raise ConfigError(
            f"roles are {len(roles)} for {len(instances)} instances; give one to each"
        )
    for engine, role in zip(engines, roles or (), strict=False):
        engine.own_view.role = role
    cluster = Cluster(requests, placement, engines, fabric)
    try:
        with uncollected():
            cluster.run()
    except KeyboardInterrupt as error:
        raise Interrupted(cluster.outcome().timeline) from error
    return cluster.outcome()


class _Move(NamedTuple):
    """A request that is on its way between two instances."""

    row: int
    live: Live
    """As it was where it comes from."""
    view: RequestView
    carried: Carried
    source: int
    to: int
    blocks: int
    start_s: float


class Cluster:
    """The clock of several engines, and the events between them."""

    def __init__(
        self,
        requests: Requests,
        placement: Placement,
        engines: Sequence[Engine],
        fabric: Fabric | None,
    ) -> None:
        self.requests = requests
        self.requests_by_row = list(simulated_requests(requests))
        self.placement = placement
        self.engines = engines
        self.telemetry = [Telemetry(engine, placement.watch) for engine in engines]
        self.transfers = None if fabric is None else Transfers(fabric)
        self.moves: dict[int, _Move] = {}
        """Those whose KV is being transferred, by number."""
        self.num_transfers = self.num_transfer_events = 0
        self.row_of = {one.request_id: row for row, one in enumerate(self.requests_by_row)}
        self.migrations: list[Migration] = []
        self.now_s = 0.0
        self.events: list[tuple[float, int, int, int, Callable[[], None]]] = []
        """Heap of (time, kind, number, number, what happens then)."""
        self.next_s = [-inf] * len(engines)
        """When the next step starts, by instance; -inf where that is to be found out."""
        self.quiet: list[tuple[float, int, int]] = []
        """Heap of (no phase ends up to this time, instance, its version); others are void."""
        self.versions = [0] * len(engines)
        self.rows: list[list[int]] = [[] for _ in engines]
        """By instance the requests that came to it, in order: rows of the engine."""
        self.last_at = np.full((len(requests), 2), -1)
        """Where each request was last: instance, and row of its engine."""
        self.roles: list[tuple[float, SetRole]] = []
        self.parked: deque[_Move] = deque()
        """Requests with their first token that wait in prefill instances for a place to go on."""
        self.num_moves = np.zeros(len(requests), dtype=np.int64)
        self.views = InstanceViews(self)
        self.hands_over = overrides(placement, "at_prefill_end")
        self.watches_phases = self.hands_over
        if overrides(placement, "at_phase_change") and len(engines) > 1:
            self.watches_phases = True
            for instance, engine in enumerate(engines):
                engine.observe(_ThinkingEnds(self, instance))
        if self.hands_over:
            for instance, engine in enumerate(engines):
                engine.observe(_HandOvers(self, instance))
        self._expect_arrival(0)
        if overrides(placement, "tick"):
            self._expect_tick(0)

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
        if self.parked:
            raise InvalidDecision(
                f"placement {self.placement.name!r} left {len(self.parked)} prefilled requests in "
                f"their instances, first {self.parked[0].view.request_id!r}; name one for each"
            )

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
            # The step that is next here may always be run: elsewhere none starts earlier.
            others_s = max(quiet[0][0] if quiet else inf, nextafter(self.next_s[instance], inf))
            self.advance(instance, min(at_s, others_s))

    def advance(self, instance: int, until_s: float) -> None:
        """Run an instance's steps that start before `until_s`."""
        engine = self.engines[instance]
        next_s = self.next_s[instance] = engine.advance(until_s)
        self.views.outdated.add(instance)
        if self.watches_phases:
            self.versions[instance] += 1
            quiet_s = engine.quiet_until_s(next_s, heeds_ends=self.hands_over)
            if quiet_s < inf:
                heappush(self.quiet, (quiet_s, instance, self.versions[instance]))

    def _engine(self, instance: int) -> Engine:
        """Return an engine that has begun all its steps before now, to do something to it.

        A stalled one notes the time: what it can do afterwards it does not do earlier.
        """
        engine = self.engines[instance]
        if self.next_s[instance] < self.now_s or engine.is_stalled:
            self.advance(instance, self.now_s)
        return engine

    def _touched(self, instance: int) -> None:
        """Note that something was done to an engine from outside."""
        self.next_s[instance] = -inf
        self.views.outdated.add(instance)
        if self.watches_phases:
            self.advance(instance, self.now_s)

    def _expect_arrival(self, row: int) -> None:
        if row < len(self.requests_by_row):
            arrival_s = self.requests_by_row[row].arrival_s
            self.push(arrival_s, _ARRIVED, row, 0, partial(self._arrive, row))

    def _arrive(self, row: int) -> None:
        simulated = self.requests_by_row[row]
        request = simulated.view(row)
        if simulated.score_delay_s:
            request.score = None  # not known yet
        chosen = self.placement.place(request, self.views)
        self._check(chosen, request)
        self._submit(row, chosen, None)
        self._expect_arrival(row + 1)

    def _expect_tick(self, number: int) -> None:
        at_s = number * self.placement.tick_s
        self.push(at_s, _TICKED, number, 0, partial(self._tick, number))

    def _tick(self, number: int) -> None:
        for change in self.placement.tick(self.now_s, self.views):
            if isinstance(change, SetRole):
                self._set_role(change)
            else:
                self._obey(change)
        self._hand_over_parked()
        for instance in range(len(self.engines)):
            self._engine(instance)
        is_pending = self.moves or any(kind != _LANDED for _, kind, *_ in self.events)
        if is_pending or min(self.next_s) < inf:
            self._expect_tick(number + 1)

    def _set_role(self, change: SetRole) -> None:
        known = isinstance(change.instance, int) and 0 <= change.instance < len(self.engines)
        if not known or change.role not in ("prefill", "decode", "both"):
            raise InvalidDecision(
                f"placement {self.placement.name!r} answered {change}; name an instance and one of "
                "the roles prefill, decode and both"
            )
        self.engines[change.instance].own_view.role = change.role
        self.roles.append((self.now_s, change))

    def _obey(self, move: Move) -> None:
        """Move a request as a tick has it; not one that has finished or is being moved."""
        row = self.row_of.get(move.request_id, -1)
        if row < 0 or self.last_at[row, 0] < 0:
            raise InvalidDecision(
                f"placement {self.placement.name!r} moved request {move.request_id!r} to instance "
                f"{move.to}, and it has not arrived; move one that was placed"
            )
        instance, own_row = self.last_at[row].tolist()
        live = self._engine(instance).state.lives[own_row]
        self._check(move.to, live.view)
        if not live.is_gone and move.to != instance:
            self._send(self._take_out(instance, live, keeps_kv=move.keeps_kv), move.to)

    def _submit(self, row: int, instance: int, carried: Carried | None) -> bool:
        engine, own_rows = self.engines[instance], self.rows[instance]
        is_held = engine.submit(self.requests_by_row[row], carried=carried)
        self.last_at[row] = instance, len(own_rows)
        own_rows.append(row)
        self.telemetry[instance].submitted(engine.state.lives[-1])
        self._touched(instance)
        return is_held

    def _check(self, chosen: object, request: RequestView) -> None:
        if not isinstance(chosen, int) or not 0 <= chosen < len(self.engines):
            raise InvalidDecision(
                f"placement {self.placement.name!r} sent request {request.request_id!r} to "
                f"instance {chosen!r}; name one of the views that it was given"
            )

    def end_phase(self, instance: int, live: Live) -> None:
        """Ask where a request is to answer that ended its thinking just now, and move it there.

        Not of one that a tick has moved during the step.
        """
        if live.is_gone:
            return
        view = live.sync_view()
        chosen = self.placement.at_phase_change(view, instance, self.views)
        self._check(chosen, view)
        if chosen != instance:
            self._send(self._take_out(instance, live), chosen)

    def end_prefill(self, instance: int, live: Live) -> None:
        """Let a request wait for the place where it goes on, if its instance only prefills."""
        if not live.is_gone and self.engines[instance].own_view.role == "prefill":
            self.parked.append(self._take_out(instance, live))
        self._hand_over_parked()

    def _hand_over_parked(self) -> None:
        """Let requests go on elsewhere, in order, as long as there is a place for the first."""
        while self.parked:
            move = self.parked[0]
            chosen = self.placement.at_prefill_end(move.view, move.source, self.views)
            if chosen is None:
                return
            self._check(chosen, move.view)
            self.parked.popleft()
            self._send(move, chosen)

    def _take_out(self, source: int, live: Live, *, keeps_kv: bool = True) -> _Move:
        """Stop a request; with its KV it holds its blocks until that has been copied."""
        carried = self._engine(source).take_out(live, holds_blocks=keeps_kv)
        if not keeps_kv:
            carried = replace(carried, kv_tokens=0)
        self._touched(source)
        blocks = self.engines[source].state.instance.blocks(carried.kv_tokens)
        row = self.rows[source][live.row]
        # A copy, as the engine's own goes on changing.
        view = replace(live.view)
        start_s = max(self.now_s, carried.available_s)
        return _Move(row, live, view, carried, source, source, blocks, start_s)

    def _send(self, move: _Move, to: int) -> None:
        """Book a request at its destination, and copy its KV from when its last step has ended."""
        move = move._replace(to=to)
        self.telemetry[to].book(move.live, move.blocks)
        self.views.outdated.add(to)
        self.num_transfers += 1
        number = self.num_transfers
        if move.start_s > self.now_s:
            self.push(move.start_s, _STARTED, number, 0, partial(self._start, move, number))
        else:
            self._start(move, number)

    def _start(self, move: _Move, number: int) -> None:
        if move.to == move.source or not move.blocks:
            self._arrive_there(move)
            return
        if self.transfers is None:
            raise ConfigError(
                f"placement {self.placement.name!r} moves requests, and nothing is between the "
                "instances; give a fabric"
            )
        self.moves[number] = move
        block_tokens = self.engines[move.source].state.instance.block_tokens
        num_bytes = move.blocks * block_tokens * self.transfers.fabric.kv_bytes_per_token
        self.transfers.start(self.now_s, number, move.source, move.to, num_bytes)
        self._expect_landing(self.transfers)

    def _expect_landing(self, transfers: Transfers) -> None:
        """Look again when the next transfer lands; an earlier such event is void."""
        self.num_transfer_events += 1
        number = self.num_transfer_events
        if transfers.next_landing_s < inf:
            action = partial(self._land, transfers, number)
            self.push(transfers.next_landing_s, _LANDED, number, 0, action)

    def _land(self, transfers: Transfers, event: int) -> None:
        if event != self.num_transfer_events:
            return
        for number in transfers.land(self.now_s):
            self._arrive_there(self.moves.pop(number))
        self._expect_landing(transfers)
        self._hand_over_parked()

    def _arrive_there(self, move: _Move) -> None:
        """Let a request go on at its destination, and free the blocks that it held."""
        self._engine(move.source).release(move.carried.held_blocks, self.now_s)
        self._touched(move.source)
        self.telemetry[move.to].book(move.live, move.blocks, sign=-1)
        carried = replace(move.carried, available_s=self.now_s, held_blocks=0)
        if not self._submit(move.row, move.to, carried):
            raise InvalidDecision(
                f"placement {self.placement.name!r} moved request {move.view.request_id!r} to "
                f"instance {move.to}, whose memory can never hold it; choose a larger one"
            )
        if move.to != move.source:
            self.num_moves[move.row] += 1
            self.migrations.append(
                Migration(
                    request_id=move.view.request_id,
                    source=move.source,
                    destination=move.to,
                    start_s=move.start_s,
                    end_s=self.now_s,
                    kv_blocks=move.blocks,
                    downtime_s=self.now_s - move.start_s,
                )
            )

    def outcome(self) -> ClusterRun:
        """Return what happened so far."""
        parts = [
            engine.timeline(self.requests.take(np.array(rows, dtype=np.int64)))
            for engine, rows in zip(self.engines, self.rows, strict=True)
        ]
        return ClusterRun(
            timeline=join_moved(self.requests, parts, self.rows, self.last_at, self.num_moves),
            migrations=tuple(self.migrations),
            roles=tuple(self.roles),
        )


class _Stops(EngineObserver):
    """Stops an engine at the end of a step in which something happens that concerns others."""

    def __init__(self, cluster: Cluster, instance: int) -> None:
        self.cluster = cluster
        self.instance = instance

    def stop(
        self, request: RequestView, now_s: float, order: int, then: Callable[[int, Live], None]
    ) -> None:
        engine = self.cluster.engines[self.instance]
        live = engine.state.lives[request.number]
        action = partial(then, self.instance, live)
        self.cluster.push(now_s, _PHASE_ENDED, self.instance, 2 * live.row + order, action)
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


def overrides(placement: Placement, method: str) -> bool:
    return getattr(type(placement), method) is not getattr(Placement, method)


class InstanceViews(Sequence[InstanceView]):
    """The instances as they are now. Those that are looked at are advanced to now, no others:
    an instance that nothing touches skips ahead as if it were alone.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.outdated = set(range(len(cluster.engines)))
        self.views = [engine.own_view for engine in cluster.engines]

    def _look(self, instance: int) -> None:
        cluster = self.cluster
        if cluster.next_s[instance] < cluster.now_s:
            cluster.advance(instance, cluster.now_s)
        if instance in self.outdated:
            cluster.telemetry[instance].view()
            self.outdated.discard(instance)

    def __len__(self) -> int:
        return len(self.views)

    @overload
    def __getitem__(self, index: int) -> InstanceView: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[InstanceView]: ...
    def __getitem__(self, index: int | slice) -> InstanceView | Sequence[InstanceView]:
        if isinstance(index, slice):
            return list(self)[index]
        view = self.views[index]
        self._look(view.instance_id)
        return view

    def __iter__(self) -> Iterator[InstanceView]:
        now_s, next_s = self.cluster.now_s, self.cluster.next_s
        late = {i for i, start_s in enumerate(next_s) if start_s < now_s}
        for instance in sorted(late | self.outdated):
            self._look(instance)
        return iter(self.views)
