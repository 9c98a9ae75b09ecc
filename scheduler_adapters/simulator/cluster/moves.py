"""Requests that go from one instance to another: copied, copied while they decode, or recomputed.

A request leaves at the end of the step under way. One that is copied stops there, holds its blocks
until the last byte has landed, and waits at its destination for as many.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from lengthwise.errors import ConfigError, at_least
from scheduler_adapters.simulator.engine.request_state import Carried, RequestState
from scheduler_adapters.simulator.links import Fabric, Transfers
from scheduler_adapters.timeline.migrations import Migration
from scheduler_adapters.views import RequestView

if TYPE_CHECKING:
    from scheduler_adapters.simulator.cluster.cluster import Cluster

LANDED, STARTED = 0, 1
"""Kinds of events of transfers; see `cluster.py` for the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveMigration:
    """Copying KV in stages while its request decodes.

    Stage 0 copies what there is, and each later stage what was generated during the one before. In
    the last one the request is paused. Stages begin at the end of a step. The destination reserves
    blocks for each stage; where it has too few, or the request has ended or was evicted, the
    migration is given up at the end of the stage.

    Source: Phasor, section on defragmentation; numbers of stages and blocks are Llumnix's.
    """

    max_stages: int = 3
    """The last one included."""
    last_blocks: int = 16
    """With no more KV blocks than that to be copied a stage is the last one."""

    def __post_init__(self) -> None:
        at_least("max_stages", self.max_stages, 2)
        at_least("last_blocks", self.last_blocks, 1)


@dataclass(slots=True, eq=False)
class Journey:
    """A request between two instances."""

    row: int
    live: RequestState
    """As it is in its source, or was when it left."""
    source: int
    to: int
    start_s: float
    view: RequestView | None = None
    """As it was when it left; the engine's own goes on changing."""
    carried: Carried | None = None
    """None: it still decodes in its source."""
    blocks: int = 0
    """Of the KV that goes along."""
    reserved_blocks: int = 0
    """At the destination, for a live migration; a copied request is only booked there."""
    is_live: bool = False
    pause_s: float = inf
    stages: int = 0
    """Begun so far; a copy is one."""
    copied_tokens: int = 0
    preemptions: int = 0
    """Of the request when it was to go: with another number its KV was lost."""


class Moves:
    """The requests between the instances of a cluster, and those that wait to be handed over."""

    def __init__(self, cluster: Cluster, fabric: Fabric | None, settings: LiveMigration) -> None:
        self.cluster = cluster
        self.settings = settings
        self.transfers = None if fabric is None else Transfers(fabric)
        self.under_way: dict[int, Journey] = {}
        """By number."""
        self.num_sent = self.num_events = self.num_aborted = 0
        self.parked: deque[Journey] = deque()
        """With their first token, in prefill instances: they wait for a place to go on."""
        self.migrations: list[Migration] = []
        self.counts = np.zeros(len(cluster.requests), dtype=np.int64)
        """How often each request has moved."""

    def take_out(self, source: int, live: RequestState, *, keeps_kv: bool = True) -> Journey:
        """Stop a request; with its KV it holds its blocks until that has been copied."""
        cluster = self.cluster
        carried = cluster.engine(source).withdraw(live, holds_blocks=keeps_kv)
        if not keeps_kv:
            carried = replace(carried, kv_tokens=0)
        cluster.touched(source)
        start_s = max(cluster.now_s, carried.available_s)
        journey = Journey(cluster.rows[source][live.row], live, source, source, start_s)
        journey.view, journey.carried, journey.pause_s = replace(live.view), carried, start_s
        journey.blocks = cluster.engines[source].instance.blocks(carried.kv_tokens)
        return journey

    def send(self, journey: Journey, to: int) -> None:
        """Book a request at its destination, and copy its KV from when its last step has ended."""
        journey.to = to
        self.cluster.book(to, journey.live, journey.blocks)
        self._expect_start(self._number(journey), journey.start_s)

    def send_live(self, source: int, live: RequestState, to: int) -> None:
        """Copy the KV of a request that decodes; one that does not is stopped and copied."""
        if live.batch is None:
            self.send(self.take_out(source, live), to)
            return
        row, start_s = self.cluster.rows[source][live.row], self._end_of_step_s(source)
        journey = Journey(row, live, source, to, start_s, preemptions=live.view.preemptions)
        journey.is_live = True
        self._count(journey, 1)
        self._expect_start(self._number(journey), start_s)

    def is_moved_live(self, live: RequestState) -> bool:
        """Return whether a request decodes while it is copied."""
        return any(journey.live is live for journey in self.under_way.values())

    def _count(self, journey: Journey, sign: int) -> None:
        """Count the live migrations at both instances."""
        for instance in (journey.source, journey.to):
            self.cluster.engines[instance].own_view.num_migrating += sign * journey.is_live

    def _number(self, journey: Journey) -> int:
        self.num_sent += 1
        self.under_way[self.num_sent] = journey
        return self.num_sent

    def _end_of_step_s(self, instance: int) -> float:
        """Return when the step under way ends; now, if there is none."""
        return max(self.cluster.now_s, self.cluster.engine(instance).load.now_s)

    def _expect_start(self, number: int, start_s: float) -> None:
        if start_s > self.cluster.now_s:
            self.cluster.push(start_s, STARTED, number, 0, partial(self._start, number))
        else:
            self._start(number)

    def _start(self, number: int) -> None:
        """Begin to copy: a request that has stopped, or the next stage of one that decodes."""
        journey = self.under_way.get(number)
        if journey is None:
            return  # an instance of it has died
        if journey.carried is None:
            self._start_stage(number, journey)
        elif journey.to == journey.source:
            self._arrive(number)
        else:
            block_tokens = self.cluster.engines[journey.source].instance.block_tokens
            self._copy(number, journey, journey.blocks * block_tokens)

    def _copy(self, number: int, journey: Journey, tokens: int) -> None:
        if not tokens:
            self._arrive(number)
            return
        journey.stages += 1
        if self.transfers is None:
            raise ConfigError(
                f"placement {self.cluster.placement.name!r} moves requests, and nothing is between "
                "the instances; give a fabric"
            )
        num_bytes = tokens * self.transfers.fabric.kv_bytes_per_token
        now_s = self.cluster.now_s
        self.transfers.start(now_s, number, journey.source, journey.to, num_bytes)
        self._expect_landing(self.transfers)

    def _start_stage(self, number: int, journey: Journey) -> None:
        """Copy what a decode has computed since the last stage began; stop it if that is little."""
        engine, live = self.cluster.engine(journey.source), journey.live
        is_lost = live.is_gone or live.batch is None
        if is_lost or live.view.preemptions != journey.preemptions or not self._reserve(journey):
            self._abort(number)
            return
        tokens = live.computed_tokens
        left = tokens - journey.copied_tokens
        is_short = engine.instance.blocks(left) <= self.settings.last_blocks
        if journey.stages and (is_short or journey.stages + 1 == self.settings.max_stages):
            stopped = self.take_out(journey.source, live)
            journey.view, journey.carried = stopped.view, stopped.carried
            journey.pause_s, journey.blocks = stopped.pause_s, stopped.blocks
            self.cluster.book(journey.to, live, 0)
        journey.copied_tokens = tokens
        self._copy(number, journey, left)

    def _reserve(self, journey: Journey) -> bool:
        """Return whether the destination keeps blocks for all that the request has computed."""
        engine = self.cluster.engine(journey.to)
        needed = engine.instance.blocks(journey.live.computed_tokens)
        if not engine.reserve(needed - journey.reserved_blocks):
            return False
        journey.reserved_blocks = needed
        self.cluster.touched(journey.to)
        return True

    def _abort(self, number: int) -> None:
        """Give up a live migration; the request, if it is still there, stays."""
        journey = self.under_way.pop(number)
        self._count(journey, -1)
        self.num_aborted += 1
        self.cluster.engine(journey.to).release(journey.reserved_blocks, self.cluster.now_s)
        self.cluster.touched(journey.to)

    def _expect_landing(self, transfers: Transfers) -> None:
        """Look again when the next transfer lands; an earlier such event is void."""
        self.num_events += 1
        number = self.num_events
        if transfers.next_landing_s < inf:
            action = partial(self._land, transfers, number)
            self.cluster.push(transfers.next_landing_s, LANDED, number, 0, action)

    def _land(self, transfers: Transfers, event: int) -> None:
        if event != self.num_events:
            return
        for number in transfers.land(self.cluster.now_s):
            journey = self.under_way[number]
            if journey.carried is None:
                self._expect_start(number, self._end_of_step_s(journey.source))
            else:
                self._arrive(number)
        self._expect_landing(transfers)
        self.hand_over_parked()

    def _arrive(self, number: int) -> None:
        """Let a request go on at its destination, and free the blocks that it held."""
        cluster, journey = self.cluster, self.under_way.pop(number)
        carried, live = journey.carried, journey.live
        assert carried is not None
        self._leave(journey, carried)
        carried = replace(
            carried,
            available_s=cluster.now_s,
            held_blocks=0,
            reserved_blocks=journey.reserved_blocks,
        )
        cluster.submit_moved(journey.row, journey.to, carried)
        if journey.to != journey.source:
            self.counts[journey.row] += 1
            self.migrations.append(
                Migration(
                    request_id=live.view.request_id,
                    source=journey.source,
                    destination=journey.to,
                    start_s=journey.start_s,
                    end_s=cluster.now_s,
                    kv_blocks=journey.blocks,
                    downtime_s=cluster.now_s - journey.pause_s,
                    stages=journey.stages,
                )
            )

    def _leave(self, journey: Journey, carried: Carried) -> None:
        """Free what a request holds where it comes from, and its booking where it goes."""
        cluster = self.cluster
        self._count(journey, -1)
        cluster.engine(journey.source).release(carried.held_blocks, cluster.now_s)
        cluster.touched(journey.source)
        booked = 0 if journey.reserved_blocks else journey.blocks
        cluster.book(journey.to, journey.live, booked, sign=-1)

    def lose(self, instance: int) -> list[tuple[int, RequestView, Carried]]:
        """Give up what goes from or to an instance that dies; returns what was between instances.

        A request that was copied while it decodes is still where it was.
        """
        now_s = self.cluster.now_s
        lost: list[Journey] = []
        for number, journey in list(self.under_way.items()):
            if instance not in (journey.source, journey.to):
                continue
            if self.transfers is not None:
                self.transfers.cancel(now_s, number)
            if journey.carried is None:
                self._abort(number)
                continue
            del self.under_way[number]
            self._leave(journey, journey.carried)
            self.cluster.engine(journey.to).release(journey.reserved_blocks, now_s)
            self.cluster.touched(journey.to)
            lost.append(journey)
        for journey in [journey for journey in self.parked if journey.source == instance]:
            self.parked.remove(journey)
            assert journey.carried is not None
            self.cluster.engine(instance).release(journey.carried.held_blocks, now_s)
            lost.append(journey)
        if self.transfers is not None:
            self._expect_landing(self.transfers)
        return [(one.row, one.view, one.carried) for one in lost if one.view and one.carried]

    def hand_over_parked(self) -> None:
        """Let requests go on elsewhere, in order, as long as there is a place for the first."""
        cluster = self.cluster
        while self.parked:
            journey = self.parked[0]
            assert journey.view is not None
            chosen = cluster.ask("at_prefill_end", journey.view, journey.source)
            if chosen is None:
                return
            cluster.check(chosen, journey.view)
            self.parked.popleft()
            self.send(journey, chosen)
