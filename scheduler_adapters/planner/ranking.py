"""The ranks of requests in a real engine, and the queue of those that wait.

An engine tells a `Ranker` what happened to a request; the `Ranker` keeps the request's view and
newest rank, and passes on to the engine's observers what happened. Waiting requests stand in a
`RankedQueue`: inserting and removing cost O(log n) comparisons, and a heap of times finds the ranks
that end, so a step without change costs nothing.
"""

import itertools
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from operator import itemgetter
from typing import Any, Generic, TypeVar

from lengthwise.errors import InvalidDecision
from scheduler_adapters.planner.late_scores import LateScore, LateScores
from scheduler_adapters.planner.recent_median import RecentMedian
from scheduler_adapters.planner.request_annotations import HintCounts, ticket_of
from scheduler_adapters.policy import Policy, ask_rank, describe
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView

Item = TypeVar("Item")
_UNRANKED = Rank()


@dataclass(slots=True)
class Tracked:
    """The state of one request. It hangs on the engine's own request object and dies with it."""

    view: RequestView
    rank: Rank = _UNRANKED
    """The policy's, behind the engine's own priority where that sorts."""
    priority: int | None = None
    """The engine's own, lower = sooner; None in an engine that does not sort by it."""
    ask_at_tokens: float = inf
    """Ask again once this many tokens are generated."""
    thinking_over: bool = False
    """Whether an end of thinking was generated, or stands at the end of the prompt."""
    prefill_seen: bool = False
    """Whether a step of the prefill in progress has ended, and the policy was asked for that."""
    late_score: LateScore | None = None
    """A score that came while the request ran: used if it waits again."""


class Ranker:
    """Turns the events of an engine into views, and asks the policy for ranks."""

    def __init__(
        self,
        policy: Policy,
        clock: Callable[[], float] = time.monotonic,
        observers: Sequence[EngineObserver] = (),
        by_priority: bool = False,
        think_end: tuple[int, ...] = (),
    ) -> None:
        self.policy = policy
        self.clock = clock
        self.think_end = think_end
        """Token ids that end thinking; empty where nobody asks."""
        self.load = LoadView()
        self.observers: tuple[EngineObserver, ...] = ()
        self.attach(observers)
        self.hint_counts = HintCounts()
        self._median = RecentMedian()
        self.late_scores: LateScores[Tracked] = LateScores()
        self.num_expired = 0
        """Ranks that ended in time so far: with a starvation guard, requests that it boosted."""
        self._by_priority = by_priority  # the engine's own goes before the policy's rank
        self._numbers = itertools.count()

    def attach(self, observers: Sequence[EngineObserver]) -> None:
        """Add observers to an idle engine."""
        self.observers += tuple(observers)
        for observer in observers:
            observer.attached(self.load)

    def track(
        self,
        request_id: str,
        *,
        age_s: float,
        prompt_tokens: int,
        carried: Mapping[str, Any] | None,
        priority: int = 0,
        prompt: Sequence[int] = (),
        ticket: str | None = None,
    ) -> Tracked:
        """Make the state of a request that arrived `age_s` seconds ago, and rank it.

        Args:
            prompt: its token ids, or as many of the last as `is_thought_over` reads.
            ticket: of a score that may come later; None: the one that it carries, if any.
        """
        ticket = ticket or ticket_of(carried)
        hints = self.hint_counts.read(carried)
        self.load.now_s = self.clock()
        tracked = Tracked(
            RequestView(
                request_id=request_id,
                number=next(self._numbers),
                arrival_s=self.load.now_s - max(0.0, age_s),
                prompt_tokens=prompt_tokens,
                **hints,
            ),
            priority=priority if self._by_priority else None,
        )
        if tracked.view.score is None and ticket is not None:
            late = self.late_scores.expect(ticket, tracked)
            if late is not None:
                self._give(tracked, late)
        self._median.arrived(tracked.view)
        tracked.thinking_over = self.is_thought_over(prompt)
        self.take(tracked, ask_rank(self.policy, tracked.view, self.load))
        for observer in self.observers:
            observer.queued(tracked.view, self.load.now_s)
        return tracked

    def is_thought_over(self, prompt: Sequence[int]) -> bool:
        """Return whether a prompt ends thinking, so that the first token generated answers.

        Where thinking is switched off, a chat template ends the prompt with an empty thought, and
        maybe line breaks.
        """
        num_last = 1 + _MAX_TOKENS_BEHIND_THOUGHT
        return bool(self.think_end) and ends_thinking(prompt, num_last, self.think_end)

    def tell_admitted(self, tracked: Tracked, started_s: float) -> None:
        """Tell the observers of an admission, and that thinking is over where it is already."""
        for observer in self.observers:
            observer.admitted(tracked.view, started_s)
            if tracked.thinking_over:
                observer.thinking_ended(tracked.view, started_s)

    def take_late_scores(self, *queues: "RankedQueue[Any]") -> None:
        """Give the requests of these queues the scores that have come in `late_scores`.

        A request that has left them meanwhile, for a seat, is given its score if it waits again.
        """
        for tracked, late in self.late_scores.take():
            tracked.late_score = late
            for queue in queues:
                item = queue.remove(tracked.view.number)
                if item is not None:
                    self.rerank(tracked)
                    queue.add(item, tracked.view.number, tracked.rank)

    def _give(self, tracked: Tracked, late: LateScore) -> None:
        tracked.view.score, tracked.view.quantiles = late.score, late.quantiles
        tracked.late_score = None
        self.hint_counts.late += 1

    def requeue(self, tracked: Tracked, *, generated_tokens: int, preemptions: int) -> None:
        """Rank a resident that has lost its blocks and waits again."""
        view = tracked.view
        view.phase = Phase.WAITING
        view.generated_tokens = generated_tokens
        view.preemptions = preemptions
        self.rerank(tracked)
        for observer in self.observers:
            observer.evicted(view, self.load.now_s)

    def rerank(self, tracked: Tracked) -> None:
        """Ask for the rank of a request again after something happened, unless it is sticky."""
        if tracked.late_score is not None and tracked.view.phase is Phase.WAITING:
            self._median.add(tracked.late_score.score)
            self._give(tracked, tracked.late_score)
        if not tracked.rank.sticky:
            self.take(tracked, ask_rank(self.policy, tracked.view, self.load))

    def expire(self, tracked: Tracked) -> None:
        """Replace a rank that has ended by its successor, known or asked for, that has not."""
        self.num_expired += 1
        for _ in range(_MAX_SUCCESSORS):
            rank = tracked.rank.then
            if rank is None:
                rank = ask_rank(self.policy, tracked.view, self.load)
            self.take(tracked, rank)
            if tracked.rank.valid_until_s > self.load.now_s:
                return
        raise InvalidDecision(
            f"policy {self.policy.name!r} keeps answering with ranks that have ended "
            f"(valid_until_s {tracked.rank.valid_until_s} at {self.load.now_s} s); "
            "return a later time, or none"
        )

    def end_step(self, started_s: float) -> None:
        """Book a step that began at `started_s` and has ended now."""
        load = self.load
        # Asynchronous engines begin a step before the one before has ended.
        began_s = max(started_s, load.last_step_end_s)
        load.now_s = load.last_step_end_s = self.clock()
        load.step += 1
        load.mean_step_s += (load.now_s - began_s - load.mean_step_s) / load.step

    def take(self, tracked: Tracked, rank: Rank) -> None:
        """Give the request a rank that the policy made for it or for its like.

        Raises:
            InvalidDecision: the engine's own priority goes first, and the lane leaves no room.
        """
        tracked.view.previous = tracked.rank = rank
        if tracked.priority is not None:
            if not (isinstance(rank.lane, int) and -_LANES <= 2 * rank.lane < _LANES):
                raise InvalidDecision(
                    f"policy {describe(self.policy)} ranked request {tracked.view.request_id!r} in "
                    f"lane {rank.lane!r}; under the engine's own priority use whole numbers from "
                    "-2**31 to 2**31 - 1"
                )
            tracked.rank = _after(tracked.priority, tracked, rank)
        tracked.ask_at_tokens = tracked.view.generated_tokens + rank.valid_tokens


_MAX_SUCCESSORS = 100
_MAX_TOKENS_BEHIND_THOUGHT = 4
"""The thoughts of earlier turns stand further back: question and header of the answer follow."""
_LANES = 2**32


def _after(priority: int, tracked: Tracked, rank: Rank) -> Rank:
    """Return the rank among those of its priority, ties by arrival; its `then` stays as it is."""
    key: Any = (rank.key, tracked.view.arrival_s)
    evict_key = None if rank.evict_key is None else (priority, *rank.evict_key)
    return rank._replace(lane=priority * _LANES + rank.lane, key=key, evict_key=evict_key)


def ends_thinking(output: Sequence[int], num_new: int, marker: tuple[int, ...]) -> bool:
    """Return whether one of the newest `num_new` tokens of `output` is the last of a marker."""
    ends = range(max(len(marker), len(output) - num_new + 1), len(output) + 1)
    return any(tuple(output[end - len(marker) : end]) == marker for end in ends)


class RankedQueue(Generic[Item]):
    """Items in order of (lane, key, number), with a timer for each rank that ends.

    Numbers are unique, so two items never compare equal, and number and rank find an item.
    """

    def __init__(self) -> None:
        self._order: list[tuple[Any, ...]] = []
        self.entries: Sized = self._order
        """One for each item: its length without a call of ours, for what asks at every step."""
        self._ranks: dict[int, Rank] = {}
        self._timers: list[tuple[float, int]] = []

    def add(self, item: Item, number: int, rank: Rank) -> None:
        """Insert an item that is not in the queue."""
        entry = (rank.lane, rank.key, number, item)
        if self._order and self._order[-1] < entry:
            self._order.append(entry)  # as FCFS always does: no search
        else:
            insort(self._order, entry)
        self._ranks[number] = rank
        if rank.valid_until_s < inf:
            heappush(self._timers, (rank.valid_until_s, number))

    def remove(self, number: int) -> Item | None:
        """Take an item out; None if it is not here."""
        rank = self._ranks.pop(number, None)
        if rank is None:
            return None
        at = 0
        if self._order[0][2] != number:  # as it mostly is: no search
            # The shorter tuple sorts just before the entry it begins.
            at = bisect_left(self._order, (rank.lane, rank.key, number))
        item: Item = self._order.pop(at)[-1]
        self._forget_timers()
        return item

    def first(self) -> Item:
        """Return the most urgent item; IndexError if the queue is empty."""
        item: Item = self._order[0][-1]
        return item

    def first_few(self, count: int) -> list[Item]:
        """Return the most urgent `count` items, or all where there are fewer."""
        return [entry[-1] for entry in self._order[:count]]

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

    def lane_after(self, lane: float) -> float:
        """Return the first lane behind `lane` that holds an item; infinity if there is none."""
        at = bisect_right(self._order, lane, key=_lane)
        following: float = self._order[at][0] if at < len(self._order) else inf
        return following

    def in_lane(self, lane: float) -> Iterator[Item]:
        """Yield the items of one lane in order. Do not change the queue meanwhile."""
        for at in range(bisect_left(self._order, lane, key=_lane), len(self._order)):
            if self._order[at][0] != lane:
                return
            yield self._order[at][-1]

    @property
    def first_end_s(self) -> float:
        """No rank in the queue ends before this."""
        return self._timers[0][0] if self._timers else inf

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


_lane = itemgetter(0)
