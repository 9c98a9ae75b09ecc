"""Many simulated instances under one clock: a placement says which of them serves a request.

Order of events: by time; at one time transfers that land, then requests that end their thinking,
then arrivals; of one kind by instance and number. Steps that start at that time start afterwards.

A decision at time t sees every instance as it is after all its steps that started before t. For
arrivals this follows from `Engine.advance(t)`. A phase ends at the end of a step, and only running
the step shows when. So the instance in which a phase may end first runs first, and only up to the
earliest time at which one may end elsewhere (`Engine.quiet_until_s`): when a phase does end, at e,
no other instance has begun a step at e or later, and each is then advanced to e.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from math import inf, nextafter
from typing import NamedTuple, overload

import numpy as np

from scheduler_adapters.placement import Placement
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
from scheduler_adapters.views import InstanceView, RequestView
from scheduler_adapters.workload.requests import Requests
from scoring_service.errors import ConfigError, InvalidDecision, require

_LANDED, _PHASE_ENDED, _ARRIVED = range(3)
"""Kinds of events, in the order in which they happen at one time."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClusterRun:
    """What came of a run."""

    timeline: Timeline
    """Of all instances; `instance` is where a request was last."""
    migrations: Sequence[Migration]
    """In the order in which they landed."""


def simulate_cluster(
    requests: Requests,
    placement: Placement,
    make_policy: Callable[[], Policy],
    instances: Sequence[Instance],
    *,
    fabric: Fabric | None = None,
    kind: EngineKind = "plain",
    observers: Callable[[int], Iterable[EngineObserver]] = lambda instance: (),
    skip_ahead: bool = True,
) -> ClusterRun:
    """Serve `requests` on `instances` in virtual time; equal input, equal bytes.

    A request that cannot be held by the instance where it is placed is rejected and reported.

    Args:
        make_policy: makes the policy of each instance.
        fabric: the network between instances; needed where the placement moves requests.
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
        self.views = InstanceViews(self)
        changes_phase = type(placement).at_phase_change is not Placement.at_phase_change
        self.watches_phases = changes_phase and len(engines) > 1
        if self.watches_phases:
            for instance, engine in enumerate(engines):
                engine.observe(_PhaseEnds(self, instance))
        self._expect_arrival(0)

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
            quiet_s = engine.quiet_until_s(next_s)
            if quiet_s < inf:
                heappush(self.quiet, (quiet_s, instance, self.versions[instance]))

    def _engine(self, instance: int) -> Engine:
        """Return an engine that has begun all its steps before now."""
        if self.next_s[instance] < self.now_s:
            self.advance(instance, self.now_s)
        return self.engines[instance]

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
        """Ask where a request is to answer that ended its thinking just now, and move it there."""
        view = live.sync_view()
        chosen = self.placement.at_phase_change(view, instance, self.views)
        self._check(chosen, view)
        if chosen != instance:
            self._move(instance, live, chosen)

    def _move(self, source: int, live: Live, to: int) -> None:
        """Stop a request, and copy its KV; it holds its blocks until that has landed."""
        if self.transfers is None:
            raise ConfigError(
                f"placement {self.placement.name!r} moves requests, and nothing is between the "
                "instances; give a fabric"
            )
        carried = self._engine(source).take_out(live, holds_blocks=True)
        self._touched(source)
        blocks = self.engines[source].state.instance.blocks(carried.kv_tokens)
        row = self.rows[source][live.row]
        # A copy, as the engine's own goes on changing.
        view = replace(live.view)
        move = _Move(row, view, carried, source, to, blocks, self.now_s)
        self.telemetry[to].book(view, blocks)
        self.views.outdated.add(to)
        self.num_transfers += 1
        self.moves[self.num_transfers] = move
        block_tokens = self.engines[source].state.instance.block_tokens
        num_bytes = blocks * block_tokens * self.transfers.fabric.kv_bytes_per_token
        self.transfers.start(self.now_s, self.num_transfers, source, to, num_bytes)
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
            move = self.moves.pop(number)
            source = self._engine(move.source)
            source.release(move.carried.held_blocks, self.now_s)
            self._touched(move.source)
            self.telemetry[move.to].book(move.view, move.blocks, sign=-1)
            carried = replace(move.carried, available_s=self.now_s, held_blocks=0)
            if not self._submit(move.row, move.to, carried):
                raise InvalidDecision(
                    f"placement {self.placement.name!r} moved request {move.view.request_id!r} to "
                    f"instance {move.to}, whose memory can never hold it; choose a larger one"
                )
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
        self._expect_landing(transfers)

    def outcome(self) -> ClusterRun:
        """Return what happened so far."""
        parts = [
            engine.timeline(self.requests.take(np.array(rows, dtype=np.int64)))
            for engine, rows in zip(self.engines, self.rows, strict=True)
        ]
        return ClusterRun(
            timeline=join_moved(self.requests, parts, self.rows, self.last_at),
            migrations=tuple(self.migrations),
        )


class _PhaseEnds(EngineObserver):
    """Stops an engine at the end of a step in which a request ended its thinking."""

    def __init__(self, cluster: Cluster, instance: int) -> None:
        self.cluster = cluster
        self.instance = instance

    def thinking_ended(self, request: RequestView, now_s: float) -> None:
        cluster, engine = self.cluster, self.cluster.engines[self.instance]
        live = engine.state.lives[request.number]
        action = partial(cluster.end_phase, self.instance, live)
        cluster.push(now_s, _PHASE_ENDED, self.instance, live.row, action)
        engine.stop()


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
