"""Migrations of requests between instances: copied, copied while they decode, or recomputed.

A request leaves at the end of the step under way. A copied request stops there and holds its blocks
until the last byte has landed. Its destination then needs as many free blocks.

A live migration copies the KV in stages while the request decodes. Stage 0 copies the present KV,
and each later stage the KV generated during the stage before. The request is paused in the last
stage. Stages begin at the end of a step. The destination reserves blocks for each stage. A
stage with too few blocks, or of a request that has ended or was evicted, aborts it.

Source: Phasor, section on defragmentation; numbers of stages and blocks are Llumnix's.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from lengthwise.errors import ConfigError
from scheduler_adapters.simulator.cluster.clock import LANDED, STARTED, ClusterClock
from scheduler_adapters.simulator.cluster.placement_views import PlacementCalls
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.simulator.links import Fabric, Transfers
from scheduler_adapters.timeline.migrations import Migration

MAX_STAGES = 3
"""Stages of a live migration at most, with the last one."""
LAST_BLOCKS = 16
"""KV blocks left to copy from which a stage is the last one."""
Submit = Callable[[int, int, RequestState], None]
"""Submits a request, by row, to an instance with its progress."""


@dataclass(slots=True, eq=False)
class OngoingMigration:
    """One request between two instances."""

    row: int
    state: RequestState
    """State in the source; of a stopped request with its progress."""
    source: int
    to: int
    start_s: float
    pause_s: float = inf
    """Time of the stop; inf while the request decodes in its source."""
    blocks: int = 0
    """Blocks of the KV taken along."""
    reserved_blocks: int = 0
    """Blocks reserved at the destination of a live migration; other migrations only book."""
    is_live: bool = False
    number: int = 0
    """Number in order of the starts."""
    stages: int = 0
    """Stages begun so far; a copy is one."""
    copied_tokens: int = 0
    preemptions: int = 0
    """Preemptions at the start of a live migration; another number means that the KV was lost."""

    @property
    def is_stopped(self) -> bool:
        return self.pause_s < inf


class RequestMigrations:
    """Requests between the instances of a cluster, and prefilled requests without a destination."""

    def __init__(
        self, clock: ClusterClock, calls: PlacementCalls, fabric: Fabric | None, submit: Submit
    ) -> None:
        self.clock, self.instances, self.calls, self.submit = clock, clock.instances, calls, submit
        self.has_fabric = fabric is not None
        self.transfers = Transfers(fabric or Fabric(kv_bytes_per_token=1))
        self.under_way: dict[int, OngoingMigration] = {}
        self.num_begun = self.num_events = self.num_aborted = 0
        self.prefilled: deque[OngoingMigration] = deque()
        """Requests with their first token in prefill instances, until a destination is named."""
        self.ended: list[Migration] = []
        self.counts: Counter[int] = Counter()
        """Number of moves by row."""

    def take_out(
        self, source: int, state: RequestState, *, keeps_kv: bool = True
    ) -> OngoingMigration:
        """Stop a request; with its KV it holds its blocks until that has been copied."""
        engine = self.clock.current(source)
        engine.withdraw(state, holds_blocks=keeps_kv)
        if not keeps_kv:
            state.kv_tokens = 0
        self.clock.changed(source)
        row, start_s = self.instances[source].rows[state.row], max(self.clock.now_s, state.joins_s)
        blocks = engine.instance.blocks(state.kv_tokens)
        return OngoingMigration(row, state, source, source, start_s, start_s, blocks)

    def send(self, migration: OngoingMigration, to: int) -> None:
        """Book a request at its destination, and copy its KV once its last step has ended."""
        migration.to = to
        self.calls.views.book(to, migration.state, migration.blocks)
        self._begin(migration)

    def send_live(self, source: int, state: RequestState, to: int) -> None:
        """Copy the KV of a request while it decodes; a request that does not is stopped."""
        if state.batch is None:
            self.send(self.take_out(source, state), to)
            return
        row, start_s = self.instances[source].rows[state.row], self._end_of_step_s(source)
        migration = OngoingMigration(row, state, source, to, start_s, is_live=True)
        migration.preemptions = state.view.preemptions
        self._count(migration, 1)
        self._begin(migration)

    def _count(self, migration: OngoingMigration, sign: int) -> None:
        """Count the live migrations at both instances."""
        for instance in (migration.source, migration.to):
            self.instances[instance].view.num_migrating += sign * migration.is_live

    def _begin(self, migration: OngoingMigration) -> None:
        self.num_begun = migration.number = self.num_begun + 1
        self.under_way[migration.number] = migration
        self._expect_start(migration, migration.start_s)

    def _end_of_step_s(self, instance: int) -> float:
        """Return the end of the step under way; now, if there is none."""
        return max(self.clock.now_s, self.clock.current(instance).load.now_s)

    def _expect_start(self, migration: OngoingMigration, start_s: float) -> None:
        if start_s > self.clock.now_s:
            self.clock.push(start_s, STARTED, migration.number, migration)
        else:
            self.start(migration)

    def start(self, migration: OngoingMigration) -> None:
        """Begin to copy: a stopped request, or the next stage of a decoding one."""
        if migration.number not in self.under_way:
            return  # one of its instances has failed
        if not migration.is_stopped:
            self._start_stage(migration)
        elif migration.to == migration.source:
            self._arrive(migration)
        else:
            block_tokens = self.instances[migration.source].view.block_tokens
            self._copy(migration, migration.blocks * block_tokens)

    def _copy(self, migration: OngoingMigration, tokens: int) -> None:
        if not tokens:
            self._arrive(migration)
            return
        migration.stages += 1
        if not self.has_fabric:
            raise ConfigError(
                f"placement {self.calls.placement.name!r} moves requests, and nothing is between "
                "the instances; give a fabric"
            )
        num_bytes = tokens * self.transfers.link.kv_bytes_per_token
        ends = migration.source, migration.to
        self.transfers.start(self.clock.now_s, migration.number, *ends, num_bytes)
        self._expect_landing()

    def _start_stage(self, migration: OngoingMigration) -> None:
        """Copy the tokens decoded since the last stage began; stop the request if they are few."""
        engine, state = self.clock.current(migration.source), migration.state
        keeps_kv = state.batch is not None and state.view.preemptions == migration.preemptions
        if state.is_gone or not keeps_kv or not self._reserve(migration):
            self._abort(migration)
            return
        tokens = state.computed_tokens
        left = tokens - migration.copied_tokens
        is_short = engine.instance.blocks(left) <= LAST_BLOCKS
        if migration.stages and (is_short or migration.stages + 1 == MAX_STAGES):
            stopped = self.take_out(migration.source, state)
            migration.blocks, migration.pause_s = stopped.blocks, stopped.pause_s
            self.calls.views.book(migration.to, state, 0)
        migration.copied_tokens = tokens
        self._copy(migration, left)

    def _reserve(self, migration: OngoingMigration) -> bool:
        """Return whether the destination could reserve blocks for all computed tokens."""
        engine = self.clock.current(migration.to)
        needed = engine.instance.blocks(migration.state.computed_tokens)
        if not engine.reserve(needed - migration.reserved_blocks):
            return False
        migration.reserved_blocks = needed
        self.clock.changed(migration.to)
        return True

    def _abort(self, migration: OngoingMigration) -> None:
        """Abort a live migration; an unfinished request stays in its source."""
        del self.under_way[migration.number]
        self._count(migration, -1)
        self.num_aborted += 1
        self.clock.release(migration.to, migration.reserved_blocks)

    def _expect_landing(self) -> None:
        """Schedule the next landing; an earlier event for it is void."""
        self.num_events += 1
        if (at_s := self.transfers.next_landing_s) < inf:
            self.clock.push(at_s, LANDED, self.num_events, self.num_events)

    def land(self, event: int) -> None:
        """End the transfers that land now, unless another event replaced this one."""
        if event != self.num_events:
            return
        for number in self.transfers.land(self.clock.now_s):
            migration = self.under_way[number]
            if migration.is_stopped:
                self._arrive(migration)
            else:
                self._expect_start(migration, self._end_of_step_s(migration.source))
        self._expect_landing()
        self.hand_over_prefilled()

    def _arrive(self, migration: OngoingMigration) -> None:
        """Submit a request to its destination, and free the blocks that it held."""
        self._leave(migration)
        state, now_s = migration.state, self.clock.now_s
        state.joins_s, state.reserved_blocks = now_s, migration.reserved_blocks
        self.submit(migration.row, migration.to, state)
        if migration.to != migration.source:
            self.counts[migration.row] += 1
            self.ended.append(
                Migration(
                    request_id=state.view.request_id,
                    source=migration.source,
                    destination=migration.to,
                    start_s=migration.start_s,
                    end_s=now_s,
                    kv_blocks=migration.blocks,
                    downtime_s=now_s - migration.pause_s,
                    stages=migration.stages,
                )
            )

    def _leave(self, migration: OngoingMigration) -> None:
        """End a migration: free the blocks held in the source, and cancel the booking."""
        del self.under_way[migration.number]
        self._count(migration, -1)
        self.clock.release(migration.source, migration.state.held_blocks)
        self.instances[migration.to].cancel_booking(migration.state)

    def lose(self, instance: int) -> list[tuple[int, RequestState]]:
        """Abort the migrations of an instance that fails; return the requests between instances.

        A request that decodes during its migration is still in its source.
        """
        lost: list[OngoingMigration] = []
        for number, migration in list(self.under_way.items()):
            if instance in (migration.source, migration.to):
                self.transfers.cancel(self.clock.now_s, number)
                if migration.is_stopped:
                    self._leave(migration)
                    self.clock.release(migration.to, migration.reserved_blocks)
                    lost.append(migration)
                else:
                    self._abort(migration)
        for migration in [one for one in self.prefilled if one.source == instance]:
            self.prefilled.remove(migration)
            self._count_prefilled(migration, -1)
            self.clock.release(instance, migration.state.held_blocks)
            lost.append(migration)
        self._expect_landing()
        return [(one.row, one.state) for one in lost]

    def keep_prefilled(self, migration: OngoingMigration) -> None:
        """Add a request that is handed over once a destination is named."""
        self.prefilled.append(migration)
        self._count_prefilled(migration, 1)

    def _count_prefilled(self, migration: OngoingMigration, sign: int) -> None:
        self.instances[migration.source].view.prefilled_blocks += sign * migration.blocks

    def hand_over_prefilled(self) -> None:
        """Send prefilled requests on, in order, as long as there is a place for the first."""
        while self.prefilled:
            migration = self.prefilled[0]
            view = migration.state.view
            if (chosen := self.calls.ask("at_prefill_end", view, migration.source)) is None:
                return
            self.calls.check(chosen, view)
            self._count_prefilled(self.prefilled.popleft(), -1)
            self.send(migration, chosen)
