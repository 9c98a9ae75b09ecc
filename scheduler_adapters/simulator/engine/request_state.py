"""State of the requests inside an engine: of one, of a decode batch, of a priority level.

The decodes of a batch advance together, with one step counter for all of them. A member's state
follows from that counter: its context is `offset + counter`, and its KV blocks follow from the
context. A heap of counters holds each member's next event: finish, end of thinking, end of a rank.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from math import ceil, inf, nan

from scheduler_adapters.policies.fair_shares import Share
from scheduler_adapters.timeline.columns import TimelineRecord
from scheduler_adapters.views import Phase, Rank, RequestView

# Looked up once: an enum's member costs ten times what a global does.
_WAITING, _PREFILL, _REASONING, _ANSWERING = Phase
# An event is one number, counter first: heaps of numbers are faster than heaps of pairs.
_ROW_BITS = 32
_ROW_MASK = (1 << _ROW_BITS) - 1
_counters = partial(array, "q")
WaitingEntry = tuple[tuple[float, ...], int, int]
"""Key, row and version of a waiting request; an older version is void."""


@dataclass(slots=True, eq=False)
class RequestState:
    """One request of an engine: submitted, served, or withdrawn with its progress.

    The output length is hidden from policies. `Engine.submit` gives the request its number.
    """

    view: RequestView
    output_tokens: int
    reasoning_tokens: int = 0
    """Output tokens before the end of thinking."""
    score_delay_s: float = 0.0
    """Seconds from the arrival until the score is available; inf: never."""
    row: int = field(init=False)
    """Number of the request in its engine: `view.number`."""
    joins_s: float = field(init=False)
    """Time at which the request joins the queue; of a withdrawn one the end of its last step."""
    context: int = field(init=False)
    """Prompt and generated tokens; out of date for a member of a batch, see `now_context`."""
    rank: Rank | None = None
    version: int = 0
    """Number of ranks so far: entries of heaps with an older one are void."""
    rank_until: float = inf
    """Generated tokens at which the rank ends."""
    is_waiting: bool = True
    is_gone: bool = False
    """True once the request was rejected, has finished or was withdrawn."""
    prefill_left: int = 0
    kept_tokens: int = 0
    """Tokens in the prefix cache when the prefill began."""
    in_prefills: bool = False
    stored_blocks: int = 0
    """KV blocks kept outside the device, to be copied back without computing them again."""
    is_brought: bool = False
    """True for stored blocks of another instance; others are in host memory."""
    is_moving: bool = False
    """True while the stored blocks are copied: out if the request waits, else back."""
    reserved_blocks: int = 0
    """Blocks reserved for the request until it joins the queue."""
    held_blocks: int = 0
    """Blocks of a withdrawn request that its engine keeps until `Engine.release`."""
    kv_tokens: int = 0
    """Tokens of a withdrawn request whose KV moves with it; 0: all are prefilled again."""
    scheduled_s: float = nan
    """Start of the first step of a withdrawn request; NaN before that."""
    evicted_s: float = -1.0
    late_score: float | None = None
    """A score that became available while the request ran: used if it waits again."""
    batch: DecodeBatch | None = None
    is_reasoning: bool = False
    """True for a member of a batch that has not ended its thinking."""
    offset: int = 0
    joined: int = 0
    """The batch's counter when this request joined it."""
    event_at: int = -1
    """The batch's counter at this member's next event."""
    last_token_s: float | None = None
    run_ticks: list[int] = field(default_factory=list)
    """First and last ticks of runs of tokens, without those in the present batch."""
    other_token_s: tuple[float, ...] = ()
    """Times of the tokens in earlier instances; of a withdrawn request those of all tokens."""

    def __post_init__(self) -> None:
        view = self.view
        self.row, self.joins_s, self.context = view.number, view.arrival_s, view.prompt_tokens

    def add_runs(self, record: TimelineRecord, ticks: Sequence[int]) -> None:
        """Record runs of tokens: the first and the last tick of each, in one sequence."""
        self.run_ticks += ticks
        record.add_runs(self.row, ticks)

    @property
    def now_context(self) -> int:
        """Prompt and generated tokens."""
        return self.context if self.batch is None else self.offset + self.batch.counter

    @property
    def generated_tokens(self) -> int:
        return self.now_context - self.view.prompt_tokens

    @property
    def computed_tokens(self) -> int:
        """Tokens of a resident, or of a request with stored blocks, that have KV."""
        return self.now_context - (self.prefill_left or 1)

    @property
    def current_rank(self) -> Rank:
        """The rank in force: that of the batch, where its members share one."""
        shared = None if self.batch is None else self.batch.rank
        rank = shared or self.rank
        assert rank is not None
        return rank

    def sync_view(self) -> RequestView:
        """Return the view, brought up to date."""
        view, batch = self.view, self.batch
        view.previous = self.rank
        if batch is None:
            generated = self.context - view.prompt_tokens
            view.last_token_s = self.last_token_s
        else:
            generated = self.offset + batch.counter - view.prompt_tokens
            view.last_token_s = batch.last_s if batch.counter > self.joined else self.last_token_s
        view.generated_tokens = generated
        if self.is_waiting or self.is_moving:
            view.phase = _WAITING
        elif self.prefill_left:
            view.phase = _PREFILL
        else:
            view.phase = _REASONING if generated < self.reasoning_tokens else _ANSWERING
        if self.reasoning_tokens:
            view.thinking_tokens = min(generated, self.reasoning_tokens)
        return view


# Stands in the place of every request that has left its engine, so that a large run keeps none.
GONE = RequestState(RequestView("", -1, 0.0, 1), 1, version=-1, is_gone=True)


@dataclass(slots=True, eq=False)
class DecodeBatch:
    """Decodes of one priority level that run in the same steps."""

    level: PriorityLevel
    rank: Rank | None
    """The rank that the members share, as all are of one `Rank.group`; None: each has its own."""
    block_tokens: int
    counter: int = 0
    """Steps of this batch so far."""
    count: int = 0
    context: int = 0
    """Sum of the members' contexts."""
    growth: list[int] = field(init=False)
    """By counter modulo block size: members that need one more block in that step."""
    members: dict[int, RequestState] = field(default_factory=dict)
    events: list[int] = field(default_factory=list)
    """Heap of counters and rows: a member's next event is at that counter."""
    next_due: float = inf
    """Counter of the first event."""
    rank_until: float = inf
    """Counter at which the shared rank ends."""
    timer_s: float = inf
    """Time at which the engine checks whether the shared rank has ended."""
    run_counters: array[int] = field(default_factory=_counters)
    """Counter of the first step of each run of steps without a gap."""
    run_ticks: array[int] = field(default_factory=_counters)
    """First tick of each run, and before it the last tick of the run before."""
    last_tick: int = -2
    last_s: float = 0.0

    def __post_init__(self) -> None:
        self.growth = [0] * self.block_tokens
        self.level.batches.append(self)

    def join(self, request: RequestState) -> None:
        """Add a decode."""
        self._add(request)
        self.expect(request)

    def _add(self, request: RequestState) -> None:
        counter = self.counter
        request.batch = self
        request.offset = request.context - counter
        request.joined = counter
        self.members[request.row] = request
        self.level.count += 1
        self._count(request.context, 1)

    def _count(self, context: int, sign: int) -> None:
        """Count a member with this context that joins, or with `sign` -1 leaves."""
        self.count += sign
        self.context += sign * context
        self.growth[(self.counter + 1 - context) % self.block_tokens] += sign

    def absorb(self, other: DecodeBatch, record: TimelineRecord) -> None:
        """Add all members of another batch, which ends."""
        shift = self.counter - other.counter
        for request in other.members.values():
            other._write_back(request, record)
            self._add(request)
            request.event_at += shift
            self._push_event(request)
        other.level.count -= other.count
        other.count = other.context = 0
        other.members.clear()
        other.level.batches.remove(other)

    def expect(self, request: RequestState) -> None:
        """Put a member's next event into the heap."""
        before = request.offset - request.view.prompt_tokens  # generated tokens at counter 0
        generated = self.counter + before
        due: float = request.output_tokens
        if generated < request.reasoning_tokens < due:
            due = request.reasoning_tokens
        if self.rank is None and generated < request.rank_until < due:
            due = request.rank_until
        request.event_at = ceil(due) - before
        self._push_event(request)

    def _push_event(self, request: RequestState) -> None:
        heappush(self.events, request.event_at << _ROW_BITS | request.row)
        if request.event_at < self.next_due:
            self.next_due = request.event_at

    def due(self) -> list[RequestState]:
        """Remove the events of the present counter, and return their members."""
        due, events, end = [], self.events, (self.counter + 1) << _ROW_BITS
        while events and events[0] < end:
            request = self.members.get(heappop(events) & _ROW_MASK)
            # A void entry: the member left, or came back, and has another entry.
            if request is not None and request.event_at == self.counter:
                request.event_at = -1
                due.append(request)
        self.next_due = events[0] >> _ROW_BITS if events else inf
        return due

    def steps_to_event(self) -> float:
        """Return the steps from now up to and with the first one that ends with an event."""
        # Not min(): this is called before every step of a cluster.
        due = self.next_due if self.next_due < self.rank_until else self.rank_until
        return due - self.counter

    def leave(self, request: RequestState, record: TimelineRecord) -> None:
        """Remove a member; its state and its tokens are written back."""
        self._write_back(request, record)
        del self.members[request.row]
        request.batch = None
        self.level.count -= 1
        self._count(request.context, -1)
        if not self.count:
            self.level.batches.remove(self)

    def _write_back(self, request: RequestState, record: TimelineRecord) -> None:
        """Copy into a member the state that so far followed from the batch."""
        request.context = request.offset + self.counter
        if self.counter > request.joined:
            request.last_token_s = self.last_s
            request.add_runs(record, self.ticks_of(request))
        if self.rank is not None:
            request.rank = self.rank

    def ticks_of(self, request: RequestState) -> array[int]:
        """Return first and last ticks of the runs of steps since a member joined."""
        first = request.joined + 1
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
        """Count `steps` further steps without a gap and without an event."""
        self.counter += steps
        self.context += steps * self.count
        self.last_tick += steps
        self.last_s = now_s

    def part(self, moving: Sequence[RequestState]) -> DecodeBatch:
        """Return a new batch of some members, with the history of this one."""
        part = DecodeBatch(self.level, self.rank, self.block_tokens, self.counter)
        part.rank_until = self.rank_until
        part.run_counters, part.run_ticks = self.run_counters[:], self.run_ticks[:]
        part.last_tick, part.last_s = self.last_tick, self.last_s
        for request in moving:
            part.members[request.row] = self.members.pop(request.row)
            request.batch = part
            part._push_event(request)
            self._count(request.now_context, -1)
            part._count(request.now_context, 1)
        return part

    def move(self, level: PriorityLevel) -> None:
        """Change the priority level of all members."""
        self.level.batches.remove(self)
        self.level.count -= self.count
        self.level = level
        level.batches.append(self)
        level.count += self.count

    def grows(self) -> int:
        """Return the blocks that the members need for their next token."""
        return self.growth[self.counter % self.block_tokens]


@dataclass(slots=True, eq=False)
class PriorityLevel:
    """The requests of one `Rank.lane`."""

    number: int
    batches: list[DecodeBatch] = field(default_factory=list)
    count: int = 0
    """Decodes in the batches."""
    prefills: list[tuple[tuple[float, ...], int]] = field(default_factory=list)
    """(key, row) of prefills in progress, ascending."""
    waiting: list[WaitingEntry] = field(default_factory=list)
    """Heap of waiting requests."""
    waiting_of: dict[Share, list[WaitingEntry]] = field(default_factory=dict)
    """Heap of each client, where clients have shares."""

    def decodes_in_order(self) -> list[RequestState]:
        """Return all decodes by key, then by row."""
        # Not one sort by (key, row): most decodes share the key of their batch.
        by_key: dict[tuple[float, ...], dict[int, RequestState]] = {}
        for batch in self.batches:
            if batch.rank is not None:
                by_key.setdefault(batch.rank.key, {}).update(batch.members)
                continue
            for row, request in batch.members.items():
                assert request.rank is not None
                by_key.setdefault(request.rank.key, {})[row] = request
        return [by_key[key][row] for key in sorted(by_key) for row in sorted(by_key[key])]
