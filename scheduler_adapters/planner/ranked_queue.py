"""The queue of waiting requests of a real engine, in rank order.

`RankedRequest` is the state that an engine keeps on each request. A `RankOrder` sorts requests by
rank. A `RankedQueue` is an order with timers for ending ranks, and with turns of clients.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from scheduler_adapters.planner.late_scores import LateScore
from scheduler_adapters.policies.fair_shares import ServiceShares, Share
from scheduler_adapters.views import Rank, RequestView

_UNRANKED = Rank()


@dataclass(slots=True)
class RankedRequest:
    """View, rank and thinking state of one request."""

    view: RequestView
    rank: Rank = _UNRANKED
    """Rank by the policy, after the engine's own priority if the engine sorts by it."""
    priority: int | None = None
    """The engine's own priority, lower = sooner; None in an engine that does not sort by it."""
    rerank_at_tokens: float = inf
    """Number of generated tokens at which the rank ends."""
    thinking_over: bool = False
    """True once an end of thinking was generated, or if the prompt ends with one."""
    prefill_seen: bool = False
    """True once the request was ranked after a step of the prefill in progress."""
    late_score: LateScore | None = None
    """A score that arrived while the request ran, used when it waits again."""
    held_until_s: float = -inf
    """End of the hold of a request that may be scored; -inf: not held."""
    unscored: tuple[str, Sequence[int]] | None = None
    """Key and token ids of a prompt that the engine's own ranker has not been given."""
    has_started: bool = False


class EngineRequest(Protocol):
    """An engine's own request object, to which our state is attached."""

    lengthwise: RankedRequest


Item = TypeVar("Item", bound=EngineRequest)
RankEntry: TypeAlias = tuple[float, Any, int, Item]
"""`Rank.lane`, `Rank.key` and receive number of an item, and the item."""


class RankOrder(Generic[Item]):
    """Items in order of `lane`, `key` and receive number.

    Inserting and removing cost O(log n) comparisons.
    """

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self.entries: list[RankEntry[Item]] = sorted(map(_entry, items))
        self._by_number = {entry[2]: entry for entry in self.entries}

    def add(self, item: Item) -> None:
        """Insert an item that is not in the order."""
        entry = self._by_number[item.lengthwise.view.number] = _entry(item)
        if self.entries and self.entries[-1] < entry:
            self.entries.append(entry)  # always under FCFS: no search
        else:
            insort(self.entries, entry)

    def remove(self, number: int) -> Item | None:
        """Remove and return the item with this receive number; None if it is not here."""
        if (entry := self._by_number.pop(number, None)) is None:
            return None
        # Most removals are of the first item: no search.
        del self.entries[0 if self.entries[0] is entry else bisect_left(self.entries, entry)]
        return entry[3]

    def find(self, number: int) -> Item | None:
        """Return the item with this receive number; None if it is not here."""
        entry = self._by_number.get(number)
        return None if entry is None else entry[3]

    def lane_after(self, lane: float) -> float:
        """Return the next greater `Rank.lane` of an item; infinity if there is none."""
        at = bisect_right(self.entries, lane, key=_lane)
        return self.entries[at][0] if at < len(self.entries) else inf

    def in_lane(self, lane: float) -> list[RankEntry[Item]]:
        """Return the entries with this `Rank.lane`, in order."""
        entries = self.entries
        if entries and entries[0][0] == entries[-1][0] == lane:
            return entries
        start = bisect_left(entries, lane, key=_lane)
        return entries[start : bisect_right(entries, lane, start, key=_lane)]

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Item]:
        return (entry[3] for entry in self.entries)


class WaitingOrder(RankOrder[Item]):
    """Waiting items in order, and the admissions that end their ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[tuple[float, int]] = []
        """`Rank.valid_until_started` and receive number, ascending."""
        self._limit_of: dict[int, tuple[float, int]] = {}

    def add(self, item: Item) -> None:
        super().add(item)
        if (until := item.lengthwise.rank.valid_until_started) < inf:
            limit = self._limit_of[item.lengthwise.view.number] = until, item.lengthwise.view.number
            insort(self.limits, limit)

    def remove(self, number: int) -> Item | None:
        if (limit := self._limit_of.pop(number, None)) is not None:
            del self.limits[bisect_left(self.limits, limit)]
        return super().remove(number)


class _Cursor(Generic[Item]):
    """The first entry of a lane, without the numbers `taken`, as admissions end ranks."""

    def __init__(self, order: WaitingOrder[Item], lane: float, taken: Container[int]) -> None:
        self._order, self._lane, self._taken = order, lane, taken
        self._entries, self._place, self._limits_read = order.in_lane(lane), 0, 0
        self._ended: list[RankEntry[Item]] = []
        """Heap of the entries whose rank has ended, as of their next rank."""

    def first(self, num_started: int) -> RankEntry[Item] | None:
        """Return the first entry after so many admissions; None if all are taken."""
        limits, entries, ended = self._order.limits, self._entries, self._ended
        while self._limits_read < len(limits) and limits[self._limits_read][0] <= num_started:
            item = self._order.find(limits[self._limits_read][1])
            if item is not None and item.lengthwise.rank.lane == self._lane:
                heappush(ended, _entry_of_next(item))
            self._limits_read += 1
        while self._place < len(entries) and entries[self._place][2] in self._taken:
            self._place += 1
        while ended and ended[0][2] in self._taken:
            heappop(ended)
        firsts = entries[self._place : self._place + 1] + ended[:1]
        return min(firsts) if firsts else None


class RankTimers(Generic[Item]):
    """Ends of ranks in time, by receive number. The timer of an earlier rank is ignored.

    Args:
        find: returns the item with a receive number, if it still counts.
        items: all that count.
    """

    def __init__(self, find: Callable[[int], Item | None], items: Sized) -> None:
        self._find = find
        self._items = items
        self._heap: list[tuple[float, int]] = []

    @property
    def next_s(self) -> float:
        """Time of the next timer; infinity without one."""
        return self._heap[0][0] if self._heap else inf

    def add(self, tracked: RankedRequest) -> None:
        """Set a timer if the rank ends in time."""
        if tracked.rank.valid_until_s < inf:
            heappush(self._heap, (tracked.rank.valid_until_s, tracked.view.number))
            self.drop_ended()

    def drop_ended(self) -> None:
        """Drop the timers of earlier ranks once they are the majority."""
        if len(self._heap) > 64 + 2 * len(self._items):
            self._heap = sorted(timer for timer in set(self._heap) if self._current(timer))

    def pop(self, now_s: float) -> Iterator[Item]:
        """Yield each item whose rank ended at or before `now_s`; the consumer replaces the rank."""
        while self._heap and self._heap[0][0] <= now_s:
            if (item := self._current(heappop(self._heap))) is not None:
                yield item

    def _current(self, timer: tuple[float, int]) -> Item | None:
        item = self._find(timer[1])
        ends_then = item is not None and item.lengthwise.rank.valid_until_s == timer[0]
        return item if ends_then else None


class RankedQueue(WaitingOrder[Item]):
    """Waiting items in order, with a timer for each ending rank.

    With `shares` that order holds inside a client, and clients take turns in each lane. `plan`
    charges an item to its client as its admission would, and hides it until `unplan`. Held items
    are in no order.
    """

    def __init__(self, shares: ServiceShares | None = None) -> None:
        super().__init__()
        self._timers: RankTimers[Item] = RankTimers(self.find, self.entries)
        self._shares = shares
        self._of: dict[Share, WaitingOrder[Item]] = {}
        """The items of each client, once there are several."""
        self._plans: dict[int, Callable[[], None] | None] = {}
        self.num_started = 0
        """`LoadView.num_started` at the start of the step, and the requests popped in it."""
        self.held: dict[int, Item] = {}
        """Receive number -> item that is being scored; the longest held is first."""

    def add(self, item: Item) -> None:
        if item.lengthwise.held_until_s > -inf:
            self.held[item.lengthwise.view.number] = item
            return
        super().add(item)
        self._timers.add(item.lengthwise)
        if self._shares is not None and not self._shares.is_alone:
            for each in self if not self._of else (item,):
                share = self._shares.share_of(each.lengthwise.view)
                self._of.setdefault(share, WaitingOrder()).add(each)

    def remove(self, number: int) -> Item | None:
        if (held := self.held.pop(number, None)) is not None:
            return held
        item = super().remove(number)
        self._timers.drop_ended()
        if self._shares is not None and self._of and item is not None:
            share = self._shares.share_of(item.lengthwise.view)
            self._of[share].remove(number)
            if not self._of[share]:
                del self._of[share]
        return item

    def plan(self, item: Item) -> None:
        """Count an item as admitted by the step in the making."""
        view = item.lengthwise.view
        self._plans[view.number] = None if self._shares is None else self._shares.plan(view)

    def unplan(self) -> None:
        """Take back all plans."""
        while self._plans:
            if (undo := self._plans.popitem()[1]) is not None:
                undo()

    def turns(self, lane: float) -> Iterable[RankEntry[Item]]:
        """Return the entries with this `Rank.lane` in the order in which they start.

        An entry that was passed over is planned.
        """
        return self._turns(lane) if self._of or self.limits else self.in_lane(lane)

    def _turns(self, lane: float) -> Iterator[RankEntry[Item]]:
        orders: Mapping[Share, WaitingOrder[Item]] = self._of or {Share(None): self}
        shares, taken = self._shares if self._of else None, set(self._plans)
        cursors = {share: _Cursor(order, lane, taken) for share, order in orders.items()}
        while True:
            started = self.num_started + len(taken)
            firsts = {of: entry for of in cursors if (entry := cursors[of].first(started))}
            if not firsts:
                return
            entry = min(firsts.values()) if shares is None else firsts[shares.next_of(firsts)]
            taken.add(entry[2])
            yield entry
            self.plan(entry[3])

    def in_order(self) -> Iterator[Item]:
        """Yield the items in the order of their admission; one passed over is planned."""
        lane = -inf
        while (lane := self.lane_after(lane)) < inf:
            for entry in self.turns(lane):
                yield entry[3]

    def first(self) -> Item:
        """Return the most urgent item; IndexError if the queue is empty."""
        first = self.entries[0]
        return next(iter(self.turns(first[0])))[3] if self._of or self.limits else first[3]

    def pop_first(self) -> Item:
        """Remove and return the most urgent item; IndexError if the queue is empty."""
        item = self.first()
        self.remove(item.lengthwise.view.number)
        self.num_started += 1
        return item

    def first_few(self, count: int) -> list[Item]:
        """Return the most urgent `count` items, or all of a shorter queue."""
        if not (self._of or self.limits):
            return [entry[3] for entry in self.entries[:count]]
        few = list(itertools.islice(self.in_order(), count))
        self.unplan()
        return few

    def pop_expired(self, now_s: float) -> list[Item]:
        """Remove and return every item whose rank ended, by `now_s` or with `num_started`."""
        expired: list[Item] = []
        if self._timers.next_s <= now_s:  # rarely: no generator is made in most steps
            for item in self._timers.pop(now_s):
                self.remove(item.lengthwise.view.number)
                expired.append(item)
        while self.limits and self.limits[0][0] <= self.num_started:
            if (ended := self.remove(self.limits[0][1])) is not None:
                expired.append(ended)
        return expired


def _entry(item: Item) -> RankEntry[Item]:
    tracked = item.lengthwise
    return tracked.rank.lane, tracked.rank.key, tracked.view.number, item


def _entry_of_next(item: Item) -> RankEntry[Item]:
    tracked = item.lengthwise
    assert tracked.rank.then is not None
    key: Any = tracked.rank.then.key
    if tracked.priority is not None:
        key = (key, tracked.view.arrival_s)
    return tracked.rank.lane, key, tracked.view.number, item


_lane = itemgetter(0)
