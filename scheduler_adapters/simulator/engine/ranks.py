"""Between two steps: asking the policy, and keeping requests where their ranks put them."""

from __future__ import annotations

from bisect import insort
from heapq import heappop, heappush
from math import inf
from operator import attrgetter

from scheduler_adapters.policy import Policy, ask_rank
from scheduler_adapters.simulator.engine.cohort import Cohort, Lane, Live
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.timeline.columns import Record
from scheduler_adapters.views import LoadView, Rank
from scoring_service.errors import InvalidDecision

MAX_SUCCESSORS = 100
"""Ranks that one request may go through at one moment."""


class Ranks:
    """The first layer of the engine: lanes, cohorts, and the timers of ranks that end."""

    # Slots, in all layers: Python is a sixth faster than with a dictionary of forty attributes.
    __slots__ = (
        "block_tokens",
        "instance",
        "lane_of",
        "lanes",
        "lives",
        "load",
        "num_prefilling",
        "num_returning",
        "num_rows",
        "num_timers",
        "num_waiting",
        "policy",
        "record",
        "residents",
        "timers",
        "used_blocks",
    )

    record: Record
    lives: list[Live]
    """All requests by row, those to come and those gone included."""
    num_rows: int

    def __init__(self, policy: Policy, instance: Instance) -> None:
        self.policy = policy
        self.instance = instance
        self.block_tokens = instance.block_tokens
        self.load = LoadView(total_blocks=instance.kv_blocks)
        self.used_blocks = 0
        self.lanes: list[Lane] = []
        """In the order in which they are served."""
        self.lane_of: dict[int, Lane] = {}
        """The same by number."""
        self.timers: list[tuple[float, int, Live | Cohort, int]] = []
        self.num_timers = 0
        self.residents: dict[int, Live] = {}
        self.num_waiting = self.num_prefilling = 0
        self.num_returning = 0
        """Of the waiting: those that are being copied back from the host."""

    def _count(self) -> None:
        load = self.load
        load.num_waiting = self.num_waiting
        load.num_prefilling = self.num_prefilling
        load.num_decoding = len(self.residents) - self.num_prefilling - self.num_returning

    def _ask(self, live: Live) -> None:
        if live.rank is not None and live.rank.sticky:
            return
        self.load.used_blocks = self.used_blocks
        self._take(live, ask_rank(self.policy, live.sync_view(), self.load))

    def _take(self, live: Live, rank: Rank) -> None:
        live.rank = rank
        live.version += 1
        live.ask_at = live.now_context - live.view.prompt_tokens + rank.valid_tokens
        if rank.valid_until_s < inf:
            self._set_timer(rank.valid_until_s, live, live.version)

    def _set_timer(self, time_s: float, ranked: Live | Cohort, version: int = 0) -> None:
        self.num_timers += 1
        heappush(self.timers, (time_s, self.num_timers, ranked, version))

    def _watch(self, cohort: Cohort, until_s: float) -> None:
        """Look at a cohort when its rank ends, or earlier: one timer outlasts many ranks."""
        if until_s < cohort.timer_s:
            cohort.timer_s = until_s
            self._set_timer(until_s, cohort)

    def _expire(self) -> None:
        """Replace the ranks that ended; each may be replaced by one that ended as well."""
        timers, now_s = self.timers, self.load.now_s
        left = MAX_SUCCESSORS * (len(timers) + 1)
        while timers and timers[0][0] <= now_s:
            time_s, _, ranked, version = heappop(timers)
            if isinstance(ranked, Cohort):
                if time_s != ranked.timer_s or not ranked.count:
                    continue
                assert ranked.rank is not None
                ranked.timer_s = inf
                if ranked.rank.valid_until_s > now_s:
                    self._watch(ranked, ranked.rank.valid_until_s)
                    continue
            elif ranked.version != version:
                continue
            left -= 1
            if not left:
                raise InvalidDecision(
                    f"policy {self.policy.name!r} keeps answering with ranks that have ended "
                    f"at {now_s} s; return a later valid_until_s, or none"
                )
            if isinstance(ranked, Cohort):
                self._expire_cohort(ranked)
            else:
                self._expire_live(ranked)

    def _expire_live(self, live: Live) -> None:
        rank = live.rank
        assert rank is not None
        self._unplace(live)
        if rank.then is not None:
            self._take(live, rank.then)
        else:
            self._ask(live)
        self._place(live)

    def _expire_cohort(self, cohort: Cohort) -> None:
        assert cohort.rank is not None
        if cohort.rank.then is not None:
            self._rank_cohort(cohort, cohort.rank.then)
        else:
            self._ask_cohort(cohort)

    def _unplace(self, live: Live) -> None:
        """Take a request out of its lane, before its rank changes."""
        assert live.rank is not None
        if live.cohort is not None:
            live.cohort.leave(live, self.record)
        elif live.in_prefills:
            self.lane_of[live.rank.lane].prefills.remove((live.rank.key, live.row))
            live.in_prefills = False

    def _place(self, live: Live) -> None:
        """Put a request into the lane of its rank."""
        if live.is_waiting:
            self._enqueue(live)
        elif live.is_moving:
            return
        elif live.prefill_left:
            assert live.rank is not None
            insort(self._lane(live.rank.lane).prefills, (live.rank.key, live.row))
            live.in_prefills = True
        else:
            self._join(live)

    def _enqueue(self, live: Live) -> None:
        rank = live.rank
        assert rank is not None
        heappush(self._lane(rank.lane).waiting, (rank.key, live.row, live.version))

    def _lane(self, number: int) -> Lane:
        lane = self.lane_of.get(number)
        if lane is None:
            lane = self.lane_of[number] = Lane(number)
            insort(self.lanes, lane, key=attrgetter("number"))
        return lane

    def _join(self, live: Live) -> None:
        """Find the cohort of a decode that was ranked just now, or make one."""
        rank = live.rank
        assert rank is not None
        lane = self._lane(rank.lane)
        shared = None if rank.group is None else rank
        for cohort in lane.cohorts:
            if shared is None:
                if cohort.rank is None:
                    break
            elif cohort.rank == shared and cohort.ask_at - cohort.counter == rank.valid_tokens:
                break
        else:
            cohort = self._new_cohort(lane, shared)
        if shared is not None:
            live.version += 1  # from here on the cohort's timer counts
        cohort.join(live)

    def _new_cohort(self, lane: Lane, rank: Rank | None, counter: int = 0) -> Cohort:
        cohort = Cohort(lane, rank, self.block_tokens, self.num_rows)
        cohort.counter = counter
        if rank is not None:
            cohort.ask_at = counter + rank.valid_tokens
            self._watch(cohort, rank.valid_until_s)
        return cohort

    def _ask_cohort(self, cohort: Cohort) -> None:
        """Ask for the rank of one member, and give it to all."""
        rank = cohort.rank
        assert rank is not None
        if not rank.sticky:
            live = next(iter(cohort.members.values()))
            live.rank = rank
            self.load.used_blocks = self.used_blocks
            rank = ask_rank(self.policy, live.sync_view(), self.load)
        self._rank_cohort(cohort, rank)

    def _rank_cohort(self, cohort: Cohort, rank: Rank) -> None:
        """Give all members a new rank, and the cohort the place that goes with it."""
        _, lane, valid_until_s, valid_tokens, _, _, group, _ = rank
        if group is None:
            for live in list(cohort.members.values()):
                cohort.leave(live, self.record)
                self._take(live, rank)
                self._join(live)
            return
        cohort.rank = rank
        cohort.ask_at = cohort.counter + valid_tokens
        if cohort.lane.number != lane:
            cohort.move(self._lane(lane))
        if valid_until_s < cohort.timer_s:
            self._watch(cohort, valid_until_s)

    def _rank_groups(self, stale: list[Cohort]) -> None:
        """Rank cohorts whose rank ended with this step; those of one group become one."""
        first_of: dict[object, Cohort] = {}
        for cohort in stale:
            if cohort.count:
                assert cohort.rank is not None
                group = cohort.rank.group
                first = first_of.get(group)
                first_of[group] = cohort if first is None else self._merge(first, cohort)
        for cohort in first_of.values():
            self._ask_cohort(cohort)

    def _merge(self, one: Cohort, other: Cohort) -> Cohort:
        """One cohort of two; the smaller one's members move."""
        large, small = (one, other) if one.count >= other.count else (other, one)
        large.absorb(small, self.record)
        return large


def rank_of(live: Live) -> Rank:
    """The rank in force: the cohort's, where the members share one."""
    shared = None if live.cohort is None else live.cohort.rank
    rank = shared or live.rank
    assert rank is not None
    return rank
