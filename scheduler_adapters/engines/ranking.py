"""What every real engine shares: asking the policy, and keeping waiting requests in its order.

An engine tells a `Ranker` what happened to a request; the `Ranker` keeps the request's view and
newest rank. Waiting requests stand in a `RankedQueue`: inserting and removing cost O(log n)
comparisons, and a heap of times finds the ranks that end, so a step without change costs nothing.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Generic, TypeVar

from scheduler_adapters.engines.hints import HintCounts
from scheduler_adapters.policy import Policy, ask_rank
from scheduler_adapters.views import LoadView, Rank, RequestView

Item = TypeVar("Item")


@dataclass(slots=True)
class Tracked:
    """Our state of one request. It hangs on the engine's own request object and dies with it."""

    view: RequestView
    rank: Rank = field(default_factory=Rank)


class Ranker:
    """Turns what happens in an engine into views, and asks the policy for ranks."""

    def __init__(self, policy: Policy, clock: Callable[[], float] = time.monotonic) -> None:
        self.policy = policy
        self.clock = clock
        self.load = LoadView()
        self.hint_counts = HintCounts()
        self._numbers = itertools.count()

    def track(
        self,
        request_id: str,
        *,
        age_s: float,
        prompt_tokens: int,
        carried: Mapping[str, Any] | None,
    ) -> Tracked:
        """Begin with a request that arrived `age_s` seconds ago, and rank it."""
        hints = self.hint_counts.read(carried)
        tracked = Tracked(
            RequestView(
                request_id=request_id,
                number=next(self._numbers),
                arrival_s=self.clock() - max(0.0, age_s),
                prompt_tokens=prompt_tokens,
                score=hints.score,
                user_class=hints.user_class,
                tbt_s=hints.tbt_s,
            )
        )
        self._ask(tracked)
        return tracked

    def rerank(self, tracked: Tracked) -> None:
        """Something happened to the request: ask for its rank again, unless that is for good."""
        if not tracked.rank.sticky:
            self._ask(tracked)

    def expire(self, tracked: Tracked) -> None:
        """The rank has ended: take its known successor, or ask."""
        if tracked.rank.then is None:
            self._ask(tracked)
        else:
            tracked.rank = tracked.rank.then

    def _ask(self, tracked: Tracked) -> None:
        self.load.now_s = self.clock()
        tracked.rank = ask_rank(self.policy, tracked.view, self.load)
        tracked.view.previous = tracked.rank


class RankedQueue(Generic[Item]):
    """Items in order of (lane, key, number), with a timer for each rank that ends.

    Numbers are unique, so two items never compare equal, and number and rank find an item.
    """

    def __init__(self) -> None:
        self._order: list[tuple[Any, ...]] = []
        self._ranks: dict[int, Rank] = {}
        self._timers: list[tuple[float, int]] = []

    def add(self, item: Item, number: int, rank: Rank) -> None:
        """Insert an item that is not in the queue."""
        insort(self._order, (rank.lane, rank.key, number, item))
        self._ranks[number] = rank
        if rank.valid_until_s < inf:
            heappush(self._timers, (rank.valid_until_s, number))

    def remove(self, number: int) -> Item | None:
        """Take an item out; None if it is not here."""
        rank = self._ranks.pop(number, None)
        if rank is None:
            return None
        # The shorter tuple sorts just before the entry it begins.
        at = bisect_left(self._order, (rank.lane, rank.key, number))
        item: Item = self._order.pop(at)[-1]
        self._forget_timers()
        return item

    def first(self) -> Item:
        """The most urgent item; IndexError if the queue is empty."""
        item: Item = self._order[0][-1]
        return item

    def pop_first(self) -> Item:
        """Take out the most urgent item; IndexError if the queue is empty."""
        item: Item
        _, _, number, item = self._order.pop(0)
        del self._ranks[number]
        self._forget_timers()
        return item

    def pop_expired(self, now_s: float) -> list[Item]:
        """Take out every item whose rank ended at or before `now_s`; the caller re-adds them."""
        expired: list[Item] = []
        while self._timers and self._timers[0][0] <= now_s:
            until_s, number = heappop(self._timers)
            rank = self._ranks.get(number)
            if rank is not None and rank.valid_until_s == until_s:
                item = self.remove(number)
                assert item is not None
                expired.append(item)
        return expired

    def __contains__(self, number: int) -> bool:
        return number in self._ranks

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Item]:
        return (entry[-1] for entry in self._order)

    def _forget_timers(self) -> None:
        # A timer outlives its item; rebuilt once such timers are the majority.
        if len(self._timers) > 64 + 2 * len(self._ranks):
            self._timers = [
                (rank.valid_until_s, number)
                for number, rank in self._ranks.items()
                if rank.valid_until_s < inf
            ]
            heapify(self._timers)
