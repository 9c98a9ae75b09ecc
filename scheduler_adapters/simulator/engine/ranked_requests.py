"""The requests of one instance by rank: calls of the policy, priority levels, waiting queues."""

from bisect import insort
from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf
from operator import attrgetter

from lengthwise.errors import InvalidDecision
from scheduler_adapters.planner.recent_median import RecentMedian
from scheduler_adapters.policies.fair_shares import ServiceShares, Share
from scheduler_adapters.policy import Policy, ask_rank
from scheduler_adapters.simulator.engine.request_state import (
    DecodeBatch,
    PriorityLevel,
    RequestState,
    WaitingEntry,
)
from scheduler_adapters.timeline.columns import TimelineRecord
from scheduler_adapters.views import LoadView, Rank

MAX_SUCCESSORS = 100
"""Ranks of one request at one moment."""


class RankedRequests:
    """Ranks, the levels and batches that they put requests into, and the times at which they end.

    A request is in one of three places of its level: waiting, prefill in progress, decode batch.
    """

    # Slots, as every step reads them: 4% of the time of a run.
    __slots__ = (
        "block_tokens", "late_scores", "level_of", "levels", "limits", "load", "median",
        "num_reasoning", "num_timers", "num_waiting", "policy", "record", "requests", "shares",
        "timers", "waiting_tokens",
    )  # fmt: skip

    def __init__(
        self, policy: Policy, load: LoadView, record: TimelineRecord, block_tokens: int
    ) -> None:
        self.policy = policy
        self.shares = ServiceShares.of(policy)
        self.load = load
        self.record = record
        self.block_tokens = block_tokens
        self.requests: list[RequestState] = []
        """All requests by row, future ones included; `GONE` for those that have left."""
        self.levels: list[PriorityLevel] = []
        """In the order in which they are served."""
        self.level_of: dict[int, PriorityLevel] = {}
        self.timers: list[tuple[float, int, RequestState | DecodeBatch, int]] = []
        self.num_timers = 0
        self.limits: list[tuple[float, int, int]] = []
        """Heap of (`Rank.valid_until_started`, row, version) of waiting requests."""
        self.median = RecentMedian()
        self.late_scores: list[tuple[float, int, RequestState, float]] = []
        """Heap of (time of availability, row, request, score)."""
        self.num_waiting = 0
        """Waiting requests; those that are being copied back are residents as well."""
        self.waiting_tokens = 0
        self.num_reasoning = 0
        """Decodes that have not ended their thinking."""

    def count_waiting(self, request: RequestState, sign: int = 1) -> None:
        """Count a request that begins to wait; `sign` -1 for one that ends."""
        self.num_waiting += sign
        self.waiting_tokens += sign * request.view.prompt_tokens

    def end_by_starts(self) -> None:
        """Replace the ranks that end with the admissions so far."""
        limits = self.limits
        while limits and limits[0][0] <= self.load.num_started:
            _, row, version = heappop(limits)
            request = self.requests[row]
            if request.version == version and request.is_waiting:
                rank = request.rank and request.rank.then
                assert rank is not None
                self.take(request, rank)
                self.place(request)

    def best_waiting(self) -> RequestState | None:
        """Return the first waiting request of the first level that has any."""
        self.end_by_starts()
        for level in self.levels:
            waiting = level.waiting
            while waiting:
                if self._waits(waiting[0]):
                    request = self.requests[waiting[0][1]]
                    return request if self.shares is None else self.next_of(level, self.shares)
                heappop(waiting)
        return None

    def _waits(self, entry: WaitingEntry) -> bool:
        request = self.requests[entry[1]]
        return request.version == entry[2] and request.is_waiting

    def next_of(self, level: PriorityLevel, shares: ServiceShares) -> RequestState:
        """Return the first waiting request of the client that is next in a level."""
        firsts: dict[Share, WaitingEntry] = {}
        for share, waiting in list(level.waiting_of.items()):
            while waiting and not self._waits(waiting[0]):
                heappop(waiting)
            if waiting:
                firsts[share] = waiting[0]
            else:
                del level.waiting_of[share]
        return self.requests[firsts[shares.next_of(firsts)][1]]

    def delay_score(self, request: RequestState) -> None:
        """Withhold a score until `score_delay_s` after the arrival of its request."""
        view, at_s = request.view, request.view.arrival_s + request.score_delay_s
        if view.score is not None and at_s < inf:
            heappush(self.late_scores, (at_s, request.row, request, view.score))
        view.score = None

    @property
    def next_score_s(self) -> float:
        """Time at which the next late score is available; inf without any."""
        return self.late_scores[0][0] if self.late_scores else inf

    def take_late_scores(self) -> Iterator[RequestState]:
        """Rank and yield the waiting requests whose scores have arrived; others keep theirs."""
        while self.next_score_s <= self.load.now_s:
            _, _, request, score = heappop(self.late_scores)
            if request.is_gone:
                continue
            if request.rank is None:  # it has yet to join the queue
                request.view.score = score
                continue
            request.late_score = score
            if request.is_waiting:
                self.wait_again(request)
                yield request

    def wait_again(self, request: RequestState) -> None:
        """Rank a request that waits again, by its late score if it has one, and queue it."""
        if request.late_score is not None:
            request.view.score = request.late_score
            self.median.arrived(request.view)
            request.late_score = None
        self.ask(request)
        self.place(request)

    def rank_waiting(self) -> None:
        """Rank all waiting requests anew."""
        for request in self.requests:
            if request.is_waiting and request.rank is not None and not request.is_gone:
                self.wait_again(request)

    def arrive(self, request: RequestState) -> None:
        """Rank a request that joins the queue, and put it there."""
        self.median.arrived(request.view)
        if self.shares is not None:
            self.shares.waits(request.sync_view())
        self.ask(request)
        self.place(request)

    def ask(self, request: RequestState) -> None:
        """Call the policy for the rank of a request, unless the present rank is permanent."""
        if request.rank is not None and request.rank.sticky:
            return
        self.take(request, ask_rank(self.policy, request.sync_view(), self.load))

    def take(self, request: RequestState, rank: Rank) -> None:
        """Give a request a rank of its own; `place` puts the request where that belongs."""
        request.rank = rank
        request.version += 1
        request.rank_until = request.generated_tokens + rank.valid_tokens
        if rank.valid_until_s < inf:
            self._set_timer(rank.valid_until_s, request, request.version)
        if rank.valid_until_started < inf:
            heappush(self.limits, (rank.valid_until_started, request.row, request.version))

    def _set_timer(self, at_s: float, ranked: RequestState | DecodeBatch, version: int = 0) -> None:
        self.num_timers += 1
        heappush(self.timers, (at_s, self.num_timers, ranked, version))

    def watch(self, batch: DecodeBatch, until_s: float) -> None:
        """Check a batch when its rank ends, or earlier: one timer outlasts many ranks."""
        if until_s < batch.timer_s:
            batch.timer_s = until_s
            self._set_timer(until_s, batch)

    def expire(self) -> None:
        """Replace the ranks that ended; a replacement may have ended as well."""
        timers, now_s = self.timers, self.load.now_s
        left = MAX_SUCCESSORS * (len(timers) + 1)
        while timers and timers[0][0] <= now_s:
            time_s, _, ranked, version = heappop(timers)
            if isinstance(ranked, DecodeBatch):
                if time_s != ranked.timer_s or not ranked.count:
                    continue
                assert ranked.rank is not None
                ranked.timer_s = inf
                if ranked.rank.valid_until_s > now_s:
                    self.watch(ranked, ranked.rank.valid_until_s)
                    continue
            elif ranked.version != version:
                continue
            left -= 1
            if not left:
                raise InvalidDecision(
                    f"policy {self.policy.name!r} keeps answering with ranks that have ended "
                    f"at {now_s} s; return a later valid_until_s, or none"
                )
            assert ranked.rank is not None
            then = ranked.rank.then
            if isinstance(ranked, RequestState):
                self._loosen(ranked)
                if then is None:
                    self.ask(ranked)
                else:
                    self.take(ranked, then)
                self._settle(ranked)
            elif then is None:
                self._ask_batch(ranked)
            else:
                self._rank_batch(ranked, then)

    def _loosen(self, request: RequestState) -> None:
        # A decode with a rank of its own stays: its next rank may be of the same level.
        if request.batch is None or request.batch.rank is not None:
            self.unplace(request)

    def _settle(self, request: RequestState) -> None:
        """Put a request into the level of its new rank, if it is not there already."""
        batch, rank = request.batch, request.rank
        if batch is None:
            self.place(request)
            return
        assert rank is not None
        if rank.lane != batch.level.number or rank.group is not None:
            self.leave(request)
            self._join(request)
            return
        if request.is_reasoning and request.generated_tokens >= request.reasoning_tokens:
            request.is_reasoning = False
            self.num_reasoning -= 1
        batch.expect(request)

    def unplace(self, request: RequestState) -> None:
        """Remove a request from its level, before its rank changes."""
        assert request.rank is not None
        if request.batch is not None:
            self.leave(request)
        elif request.in_prefills:
            self.level_of[request.rank.lane].prefills.remove((request.rank.key, request.row))
            request.in_prefills = False

    def leave(self, request: RequestState) -> None:
        """Remove a decode from its batch."""
        assert request.batch is not None
        request.batch.leave(request, self.record)
        self.num_reasoning -= request.is_reasoning
        request.is_reasoning = False

    def place(self, request: RequestState) -> None:
        """Put a request into the level of its rank; one that is copied back has no place yet."""
        rank = request.rank
        assert rank is not None
        if request.is_waiting:
            level, entry = self._level(rank.lane), (rank.key, request.row, request.version)
            heappush(level.waiting, entry)
            if self.shares is not None:
                heappush(level.waiting_of.setdefault(self.shares.share_of(request.view), []), entry)
        elif request.is_moving:
            return
        elif request.prefill_left:
            insort(self._level(rank.lane).prefills, (rank.key, request.row))
            request.in_prefills = True
        else:
            self._join(request)

    def _level(self, number: int) -> PriorityLevel:
        if (level := self.level_of.get(number)) is None:
            level = self.level_of[number] = PriorityLevel(number)
            insort(self.levels, level, key=attrgetter("number"))
        return level

    def _join(self, request: RequestState) -> None:
        """Add a decode that was ranked just now to its batch; make one where there is none."""
        rank = request.rank
        assert rank is not None
        level = self._level(rank.lane)
        shared = None if rank.group is None else rank
        for batch in level.batches:
            if shared is None:
                if batch.rank is None:
                    break
            elif batch.rank == shared and batch.rank_until - batch.counter == rank.valid_tokens:
                break
        else:
            batch = DecodeBatch(level, shared, self.block_tokens)
            if shared is not None:
                batch.rank_until = rank.valid_tokens
                self.watch(batch, rank.valid_until_s)
        if shared is not None:
            request.version += 1  # from here on the batch's timer counts
        if request.context - request.view.prompt_tokens < request.reasoning_tokens:
            request.is_reasoning = True
            self.num_reasoning += 1
        batch.join(request)

    def _ask_batch(self, batch: DecodeBatch) -> None:
        """Call the policy for the rank of one member, and give it to all."""
        rank = batch.rank
        assert rank is not None
        if not rank.sticky:
            request = next(iter(batch.members.values()))
            request.rank = rank
            rank = ask_rank(self.policy, request.sync_view(), self.load)
        self._rank_batch(batch, rank)

    def _rank_batch(self, batch: DecodeBatch, rank: Rank) -> None:
        """Give all members a new rank, and move the batch to the level of that rank."""
        _, lane, valid_until_s, valid_tokens, _, _, group, *_ = rank
        if group is None:
            for request in list(batch.members.values()):
                self.leave(request)
                self.take(request, rank)
                self._join(request)
            return
        batch.rank = rank
        batch.rank_until = batch.counter + valid_tokens
        if batch.level.number != lane:
            batch.move(self._level(lane))
        if valid_until_s < batch.timer_s:
            self.watch(batch, valid_until_s)

    def merge(self, one: DecodeBatch, other: DecodeBatch) -> DecodeBatch:
        """Return one batch of two; the members of the smaller one move."""
        large, small = (one, other) if one.count >= other.count else (other, one)
        large.absorb(small, self.record)
        return large

    def rank_changed(self, changed: list[RequestState], stale: list[DecodeBatch]) -> None:
        """Rank requests with an event in the last step, and batches whose rank ended.

        Batches of one group become one.
        """
        for request in changed:
            self._loosen(request)
        first_of: dict[object, DecodeBatch] = {}
        for batch in stale:
            if batch.count:
                assert batch.rank is not None
                first = first_of.get(batch.rank.group)
                merged = batch if first is None else self.merge(first, batch)
                first_of[batch.rank.group] = merged
        for batch in first_of.values():
            self._ask_batch(batch)
        for request in changed:
            self.ask(request)
            self._settle(request)
