"""The ranks of one instance: asking the policy, and keeping requests where their ranks put them."""

from bisect import insort
from heapq import heappop, heappush
from math import inf
from operator import attrgetter

from lengthwise.errors import InvalidDecision
from scheduler_adapters.planner.recent_median import RecentMedian
from scheduler_adapters.policy import ask_rank
from scheduler_adapters.simulator.engine.decode_batch import DecodeBatch, PriorityLevel
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.simulator.engine.state import EngineState
from scheduler_adapters.views import Rank

MAX_SUCCESSORS = 100
"""Ranks that one request may go through at one moment."""


class RankedRequests:
    """Ranks, the lanes and batches that they put requests into, and the times at which they end."""

    __slots__ = (
        "block_tokens", "lane_of", "lanes", "late_scores", "load", "median", "num_timers", "policy",
        "record", "state", "timers",
    )  # fmt: skip

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self.policy = state.policy
        self.load = state.load
        self.record = state.record
        self.block_tokens = state.instance.block_tokens
        self.lanes: list[PriorityLevel] = []
        """In the order in which they are served."""
        self.lane_of: dict[int, PriorityLevel] = {}
        """The same by number."""
        self.timers: list[tuple[float, int, RequestState | DecodeBatch, int]] = []
        self.num_timers = 0
        self.median = RecentMedian()
        self.late_scores: list[tuple[float, int, RequestState, float]] = []
        """Heap of (when it is known, row, request, score)."""

    def delay_score(self, live: RequestState, delay_s: float) -> None:
        """Keep a score back until so long after the arrival of its request."""
        view = live.view
        if view.score is not None and delay_s < inf:
            known_s = view.arrival_s + delay_s
            heappush(self.late_scores, (known_s, live.row, live, view.score))
        view.score = None

    @property
    def next_score_s(self) -> float:
        """When the next late score is known; inf if there is none."""
        return self.late_scores[0][0] if self.late_scores else inf

    @property
    def next_timer_s(self) -> float:
        """When a rank may end next; inf if none does by time."""
        return self.timers[0][0] if self.timers else inf

    def take_late_scores(self) -> None:
        """Rank the waiting requests whose scores have come; one that runs, if it waits again."""
        while self.next_score_s <= self.load.now_s:
            _, _, live, score = heappop(self.late_scores)
            if live.is_gone:
                continue
            if live.rank is None:  # it has yet to join the queue
                live.view.score = score
            elif live.is_waiting:
                self._use_late(live, score)
                self.ask(live)
                self.enqueue(live)
            else:
                live.late_score = score

    def _use_late(self, live: RequestState, score: float) -> None:
        live.view.score, live.late_score = score, None
        self.median.add(score)

    def wait_again(self, live: RequestState) -> None:
        """Rank a request that has lost its blocks, and put it into the queue."""
        if live.late_score is not None:
            self._use_late(live, live.late_score)
        self.ask(live)
        self.enqueue(live)

    def arrive(self, live: RequestState) -> None:
        """Rank a request that joins the queue, and put it there."""
        self.median.arrived(live.view)
        self.ask(live)
        self.enqueue(live)

    def ask(self, live: RequestState) -> None:
        """Ask the policy for the rank of a request, unless it has one for good."""
        if live.rank is not None and live.rank.sticky:
            return
        self.take(live, ask_rank(self.policy, live.sync_view(), self.load))

    def take(self, live: RequestState, rank: Rank) -> None:
        """Give a request a rank of its own; `place` puts it where that belongs."""
        live.rank = rank
        live.version += 1
        live.ask_at = live.now_context - live.view.prompt_tokens + rank.valid_tokens
        if rank.valid_until_s < inf:
            self._set_timer(rank.valid_until_s, live, live.version)

    def _set_timer(
        self, time_s: float, ranked: RequestState | DecodeBatch, version: int = 0
    ) -> None:
        self.num_timers += 1
        heappush(self.timers, (time_s, self.num_timers, ranked, version))

    def watch(self, batch: DecodeBatch, until_s: float) -> None:
        """Check a batch when its rank ends, or earlier: one timer outlasts many ranks."""
        if until_s < batch.timer_s:
            batch.timer_s = until_s
            self._set_timer(until_s, batch)

    def expire(self) -> None:
        """Replace the ranks that ended; each may be replaced by one that ended as well."""
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
                self._expire_live(ranked, then)
            elif then is None:
                self._ask_batch(ranked)
            else:
                self._rank_batch(ranked, then)

    def _expire_live(self, live: RequestState, then: Rank | None) -> None:
        self._loosen(live)
        if then is None:
            self.ask(live)
        else:
            self.take(live, then)
        self._settle(live)

    def _loosen(self, live: RequestState) -> None:
        """Take a request out of its lane, but for a decode with a rank of its own: where that one's
        next rank is of the same lane, it can stay as it is."""
        if live.batch is None or live.batch.rank is not None:
            self.unplace(live)

    def _settle(self, live: RequestState) -> None:
        """Put a request into the lane of its new rank; one that has stayed may have to leave."""
        batch, rank = live.batch, live.rank
        if batch is None:
            self.place(live)
            return
        assert rank is not None
        if rank.lane != batch.lane.number or rank.group is not None:
            self.leave(batch, live)
            self._join(live)
            return
        if (
            live.is_reasoning
            and live.now_context - live.view.prompt_tokens >= live.reasoning_tokens
        ):
            live.is_reasoning = False
            self.state.num_reasoning -= 1
        batch.expect(live)

    def unplace(self, live: RequestState) -> None:
        """Take a request out of its lane, before its rank changes."""
        assert live.rank is not None
        if live.batch is not None:
            self.leave(live.batch, live)
        elif live.in_prefills:
            self.lane_of[live.rank.lane].prefills.remove((live.rank.key, live.row))
            live.in_prefills = False

    def leave(self, batch: DecodeBatch, live: RequestState) -> None:
        """Take a decode out of its batch."""
        batch.leave(live, self.record)
        self.state.num_reasoning -= live.is_reasoning
        live.is_reasoning = False

    def place(self, live: RequestState) -> None:
        """Put a request into the lane of its rank."""
        if live.is_waiting:
            self.enqueue(live)
        elif live.is_moving:
            return
        elif live.prefill_left:
            assert live.rank is not None
            number = live.rank.lane
            lane = self.lane_of.get(number) or self._open_lane(number)
            insort(lane.prefills, (live.rank.key, live.row))
            live.in_prefills = True
        else:
            self._join(live)

    def enqueue(self, live: RequestState) -> None:
        """Put a waiting request into the queue of its lane."""
        rank = live.rank
        assert rank is not None
        lane = self.lane_of.get(rank.lane) or self._open_lane(rank.lane)
        heappush(lane.waiting, (rank.key, live.row, live.version))

    def _open_lane(self, number: int) -> PriorityLevel:
        lane = self.lane_of[number] = PriorityLevel(number)
        insort(self.lanes, lane, key=attrgetter("number"))
        return lane

    def _join(self, live: RequestState) -> None:
        """Add a decode that was ranked just now to its batch; make one where there is none."""
        rank = live.rank
        assert rank is not None
        lane = self.lane_of.get(rank.lane) or self._open_lane(rank.lane)
        shared = None if rank.group is None else rank
        for batch in lane.batches:
            if shared is None:
                if batch.rank is None:
                    break
            elif batch.rank == shared and batch.ask_at - batch.counter == rank.valid_tokens:
                break
        else:
            batch = DecodeBatch(lane, shared, self.block_tokens)
            if shared is not None:
                batch.ask_at = rank.valid_tokens
                self.watch(batch, rank.valid_until_s)
        if shared is not None:
            live.version += 1  # from here on the batch's timer counts
        if live.context - live.view.prompt_tokens < live.reasoning_tokens:
            live.is_reasoning = True
            self.state.num_reasoning += 1
        batch.join(live)

    def _ask_batch(self, batch: DecodeBatch) -> None:
        """Ask for the rank of one member, and give it to all."""
        rank = batch.rank
        assert rank is not None
        if not rank.sticky:
            live = next(iter(batch.members.values()))
            live.rank = rank
            rank = ask_rank(self.policy, live.sync_view(), self.load)
        self._rank_batch(batch, rank)

    def _rank_batch(self, batch: DecodeBatch, rank: Rank) -> None:
        """Give all members a new rank, and the batch the place that goes with it."""
        _, lane, valid_until_s, valid_tokens, _, _, group, _ = rank
        if group is None:
            for live in list(batch.members.values()):
                self.leave(batch, live)
                self.take(live, rank)
                self._join(live)
            return
        batch.rank = rank
        batch.ask_at = batch.counter + valid_tokens
        if batch.lane.number != lane:
            batch.move(self.lane_of.get(lane) or self._open_lane(lane))
        if valid_until_s < batch.timer_s:
            self.watch(batch, valid_until_s)

    def rank_groups(self, stale: list[DecodeBatch]) -> None:
        """Rank the batches whose rank ended with this step; those of one group become one."""
        if len(stale) == 1 and stale[0].count:
            self._ask_batch(stale[0])
            return
        first_of: dict[object, DecodeBatch] = {}
        for batch in stale:
            if batch.count:
                assert batch.rank is not None
                group = batch.rank.group
                first = first_of.get(group)
                first_of[group] = batch if first is None else self.merge(first, batch)
        for batch in first_of.values():
            self._ask_batch(batch)

    def merge(self, one: DecodeBatch, other: DecodeBatch) -> DecodeBatch:
        """Return one batch of two; the members of the smaller one move."""
        large, small = (one, other) if one.count >= other.count else (other, one)
        large.absorb(small, self.record)
        return large

    def rank_changed(self, changed: list[RequestState], stale: list[DecodeBatch]) -> None:
        """Rank anew the requests to which something happened, and batches whose rank ended."""
        for live in changed:
            self._loosen(live)
        if stale:
            self.rank_groups(stale)
        for live in changed:
            self.ask(live)
            self._settle(live)
