"""Decodes that advance together, with one step counter for all of them.

A member's state follows from the batch's step counter: its context is `offset + counter`, and the
KV blocks it holds follow from the context. What happens to it next (finish, end of thinking, a rank
that ends) stands in a heap of counters.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush
from math import ceil, inf

from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.timeline.columns import TimelineRecord
from scheduler_adapters.views import Rank

_ROW_BITS = 32
_ROW_MASK = (1 << _ROW_BITS) - 1
"""An event is one number, counter first: heaps of numbers are faster than heaps of pairs."""


class DecodeBatch:
    """Decodes of one lane that run in the same steps.

    With a `rank` the members share it (they are of one `Rank.group` and were ranked together);
    without one each keeps its own.
    """

    __slots__ = (
        "ask_at", "block_tokens", "context", "count", "counter", "events", "growth", "lane",
        "last_s", "last_tick", "members", "next_due", "rank", "run_counters", "run_ticks",
        "timer_s",
    )  # fmt: skip

    def __init__(self, lane: PriorityLevel, rank: Rank | None, block_tokens: int) -> None:
        self.lane = lane
        self.rank = rank
        self.block_tokens = block_tokens
        self.counter = 0
        """Steps this batch has run."""
        self.count = 0
        self.context = 0
        """Sum of the members' contexts."""
        self.growth = [0] * block_tokens
        """By counter modulo block size: members that need one more block in that step."""
        self.members: dict[int, RequestState] = {}
        self.events: list[int] = []
        """Heap of counters and rows: something happens to that member at that counter."""
        self.next_due: float = inf
        """Nothing happens to any member before the counter has this value."""
        self.ask_at: float = inf
        """Counter at which the shared rank is asked for again."""
        self.timer_s = inf
        """When the engine looks whether the shared rank has ended."""
        self.run_counters = array("q")
        """Counter of the first step of each run of steps without a gap."""
        self.run_ticks = array("q")
        """First tick of each run, and before it the last tick of the run before."""
        self.last_tick = -2
        self.last_s = 0.0
        lane.batches.append(self)

    def join(self, live: RequestState) -> None:
        """Add a decode."""
        self._add(live)
        self.expect(live)

    def _add(self, live: RequestState) -> None:
        counter = self.counter
        live.batch = self
        live.offset = live.context - counter
        live.joined = counter
        self.members[live.row] = live
        self.count += 1
        self.lane.count += 1
        self.context += live.context
        self.growth[(counter + 1 - live.context) % self.block_tokens] += 1

    def absorb(self, other: DecodeBatch, record: TimelineRecord) -> None:
        """Add all members of another batch, which ends."""
        shift = self.counter - other.counter
        for live in other.members.values():
            other._write_down(live, record)
            self._add(live)
            live.event_at += shift
            self._push_event(live)
        other.lane.count -= other.count
        other.count = other.context = 0
        other.members.clear()
        other.lane.batches.remove(other)

    def expect(self, live: RequestState) -> None:
        """Put the next thing that happens to a member into the heap."""
        before = live.offset - live.view.prompt_tokens  # generated tokens at counter 0
        generated = self.counter + before
        due: float = live.output_tokens
        if generated < live.reasoning_tokens < due:
            due = live.reasoning_tokens
        if self.rank is None and generated < live.ask_at < due:
            due = live.ask_at
        live.event_at = ceil(due) - before
        self._push_event(live)

    def _push_event(self, live: RequestState) -> None:
        heappush(self.events, live.event_at << _ROW_BITS | live.row)
        if live.event_at < self.next_due:
            self.next_due = live.event_at

    def due(self) -> list[RequestState]:
        """Remove the events of the present counter, and return the members that have one."""
        due, events, end = [], self.events, (self.counter + 1) << _ROW_BITS
        while events and events[0] < end:
            live = self.members.get(heappop(events) & _ROW_MASK)
            # A void entry: the member left, or came back, and has another entry.
            if live is not None and live.event_at == self.counter:
                live.event_at = -1
                due.append(live)
        self.next_due = events[0] >> _ROW_BITS if events else inf
        return due

    def steps_to_event(self) -> float:
        """Return a number of steps from now before whose last one nothing happens to any member."""
        # Not min(): this is asked before every step of a cluster.
        due = self.next_due if self.next_due < self.ask_at else self.ask_at
        return due - self.counter

    def leave(self, live: RequestState, record: TimelineRecord) -> None:
        """Remove a member; its state and its tokens are written down."""
        self._write_down(live, record)
        del self.members[live.row]
        live.batch = None
        self.count -= 1
        self.lane.count -= 1
        self.context -= live.context
        self.growth[(self.counter + 1 - live.context) % self.block_tokens] -= 1
        if not self.count:
            self.lane.batches.remove(self)

    def _write_down(self, live: RequestState, record: TimelineRecord) -> None:
        """Copy into a member the state that so far followed from the batch's."""
        live.context = live.offset + self.counter
        if self.counter > live.joined:
            live.last_token_s = self.last_s
            live.write_runs(record, self.ticks_of(live))
        if self.rank is not None:
            live.rank = self.rank

    def ticks_of(self, live: RequestState) -> array[int]:
        """Return first and last ticks of runs of the steps that a member has been in since it
        joined: of those with a counter in (joined, counter].
        """
        first = live.joined + 1
        run = bisect_right(self.run_counters, first) - 1
        ticks = self.run_ticks[2 * run + 1 :]
        ticks[0] += first - self.run_counters[run]
        ticks.append(self.last_tick)
        return ticks

    def advance(self, tick: int, now_s: float) -> None:
        """Count one step of all members, which ended at `tick`."""
        self.counter += 1
        self.context += self.count
        if self.last_tick != tick - 1:
            self.run_counters.append(self.counter)
            self.run_ticks.append(self.last_tick)
            self.run_ticks.append(tick)
        self.last_tick = tick
        self.last_s = now_s

    def advance_many(self, steps: int, now_s: float) -> None:
        """Count `steps` further steps without a gap, in which nothing happened to any member."""
        self.counter += steps
        self.context += steps * self.count
        self.last_tick += steps
        self.last_s = now_s

    def part(self, moving: Sequence[RequestState]) -> DecodeBatch:
        """Return a new batch of some members, with the history of this one."""
        part = DecodeBatch(self.lane, self.rank, self.block_tokens)
        part.counter, part.ask_at = self.counter, self.ask_at
        part.run_counters, part.run_ticks = self.run_counters[:], self.run_ticks[:]
        part.last_tick, part.last_s = self.last_tick, self.last_s
        for live in moving:
            context = live.offset + self.counter
            slot = (self.counter + 1 - context) % self.block_tokens
            part.members[live.row] = self.members.pop(live.row)
            live.batch = part
            part._push_event(live)
            for batch, sign in ((self, -1), (part, 1)):
                batch.count += sign
                batch.context += sign * context
                batch.growth[slot] += sign
        return part

    def move(self, lane: PriorityLevel) -> None:
        """Change the lane of all members."""
        self.lane.batches.remove(self)
        self.lane.count -= self.count
        self.lane = lane
        lane.batches.append(self)
        lane.count += self.count

    def grows(self, ahead: int = 0) -> int:
        """Return the blocks that the members need in the step after `ahead` more."""
        return self.growth[(self.counter + ahead) % self.block_tokens]


class PriorityLevel:
    """The requests of one `Rank.lane`."""

    __slots__ = ("batches", "count", "number", "prefills", "waiting")

    def __init__(self, number: int) -> None:
        self.number = number
        self.batches: list[DecodeBatch] = []
        self.count = 0
        """Decodes in the batches."""
        self.prefills: list[tuple[tuple[float, ...], int]] = []
        """(key, row) of prefills in progress, ascending."""
        self.waiting: list[tuple[tuple[float, ...], int, int]] = []
        """Heap of (key, row, version) of waiting requests; an older version is void."""

    def decodes_in_order(self) -> list[RequestState]:
        """Return all decodes by key, of equals by row."""
        by_key: dict[tuple[float, ...], dict[int, RequestState]] = {}
        for batch in self.batches:
            if batch.rank is not None:
                by_key.setdefault(batch.rank.key, {}).update(batch.members)
                continue
            for row, live in batch.members.items():
                assert live.rank is not None
                by_key.setdefault(live.rank.key, {})[row] = live
        return [by_key[key][row] for key in sorted(by_key) for row in sorted(by_key[key])]
