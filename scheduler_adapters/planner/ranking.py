"""The ranks of requests in a real engine, and the queue of waiting requests.

An engine reports the events of its requests to a `Ranker`. The `Ranker` keeps the view and newest
rank of each request, and reports events to the engine's observers. Waiting requests stand in a
`RankedQueue`.
"""

import itertools
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from lengthwise.errors import InvalidDecision
from scheduler_adapters.planner.capabilities import plans_steps
from scheduler_adapters.planner.late_scores import LateScore, LateScores, PromptScoring
from scheduler_adapters.planner.recent_median import RecentMedian
from scheduler_adapters.planner.request_annotations import AnnotationCounts, request_key
from scheduler_adapters.policies.fair_shares import ServiceShares, Share
from scheduler_adapters.policy import Policy, ask_rank, describe
from scheduler_adapters.timeline.observer import EngineObserver, overriding
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView

_UNRANKED = Rank()
_MAX_SUCCESSORS = 100
# The thoughts of earlier turns are further back: question and header of the answer follow them.
_NEWEST_TOKENS = 5
_PRIORITY_STRIDE = 2**32


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


class EngineRequest(Protocol):
    """An engine's own request object, to which our state is attached."""

    lengthwise: RankedRequest


Item = TypeVar("Item", bound=EngineRequest)
RankEntry: TypeAlias = tuple[float, Any, int, Item]
"""`Rank.lane`, `Rank.key` and receive number of an item, and the item."""


class Ranker:
    """Requests of one engine: their views, kept by its events, and the policy's ranks for them.

    Args:
        by_priority: True where the engine's own priority precedes the policy's rank.
        think_end: token ids that end thinking; empty if unused.
        scoring: the engine's own ranker, for requests without another score. It scores those that
            start at once, as nothing is scarce, only if the policy ranks running requests too.
    """

    def __init__(
        self,
        policy: Policy,
        clock: Callable[[], float] = time.monotonic,
        observers: Sequence[EngineObserver] = (),
        by_priority: bool = False,
        think_end: tuple[int, ...] = (),
        scoring: PromptScoring | None = None,
    ) -> None:
        self.policy = policy
        self.shares = ServiceShares.of(policy)
        self.clock = clock
        self.think_end = think_end
        self.scoring = scoring
        self._scores_all = scoring is not None and (scoring.score_all or plans_steps(policy))
        self._unscored: list[RankedRequest] = []
        """Requests queued without a score, since seats and tokens were free for all."""
        self.load = LoadView()
        self.observers = tuple(observers)
        events = ("queued", "admitted", "emitted", "stepped")
        self.at = {event: overriding(observers, event) for event in events}
        self.annotation_counts = AnnotationCounts()
        self._median = RecentMedian()
        self.late_scores: LateScores[RankedRequest] = LateScores()
        self.num_expired = 0
        """Ranks that have ended in time: with a starvation guard, requests that it boosted."""
        self._by_priority = by_priority
        self._numbers = itertools.count()

    def track(
        self,
        request_id: str,
        *,
        age_s: float,
        prompt_tokens: int,
        carried: Mapping[str, Any] | None,
        priority: int = 0,
        prompt: Sequence[int] = (),
        key: str | None = None,
        limits: tuple[float, float] = (0, inf),
        cached_tokens: int = 0,
    ) -> RankedRequest:
        """Make the state of a request that arrived `age_s` seconds ago, and rank it.

        Args:
            carried: its annotations.
            prompt: its token ids. Without `scoring` the last ones are enough, which
                `ends_prompt_thinking` reads.
            key: of a score that may arrive later; None: the one among the annotations, if any.
            limits: least and most output tokens, unless the annotations have these.
            cached_tokens: prompt tokens in the prefix cache.
        """
        scored_elsewhere = request_key(carried)
        key = key or scored_elsewhere
        now_s = self.load.now_s = self.clock()
        tracked = RankedRequest(
            RequestView(
                request_id=request_id,
                number=next(self._numbers),
                arrival_s=now_s - max(0.0, age_s),
                prompt_tokens=prompt_tokens,
                cached_tokens=cached_tokens,
                **{"limits": limits} | self.annotation_counts.read(carried),
            ),
            priority=priority if self._by_priority else None,
            thinking_over=self.ends_prompt_thinking(prompt),
        )
        if tracked.view.score is None:
            if scored_elsewhere is None and self.scoring is not None:
                tracked.held_until_s = now_s + self.scoring.hold_s
                tracked.unscored = key or str(tracked.view.number), prompt
                if self._scores_all:
                    self._score(tracked)
            elif key is not None and (late := self.late_scores.expect(key, tracked)) is not None:
                self._use_late(tracked, late)
        self._median.arrived(tracked.view)
        self.load.num_waiting += 1  # until the next step counts anew
        if self.shares is not None:
            self.shares.waits(tracked.view)
        self.set_rank(tracked, ask_rank(self.policy, tracked.view, self.load))
        for observer in self.at["queued"]:
            observer.queued(tracked.view, now_s)
        return tracked

    def ends_prompt_thinking(self, prompt: Sequence[int]) -> bool:
        """Return whether a prompt ends thinking, so that the first generated token answers."""
        # Where thinking is off, a chat template ends the prompt with an empty thought and perhaps
        # line breaks.
        return bool(self.think_end) and ends_thinking(prompt, _NEWEST_TOKENS, self.think_end)

    def _score(self, tracked: RankedRequest) -> None:
        """Give a prompt to the engine's own ranker, once."""
        if self.scoring is not None and tracked.unscored is not None:
            (key, prompt), tracked.unscored = tracked.unscored, None
            tracked.late_score = self.late_scores.expect(key, tracked)
            if tracked.late_score is None and not self.scoring.submit(
                key, prompt, tracked.view.client, self.late_scores.inbox.append
            ):
                self.annotation_counts.count("full")
                tracked.held_until_s = min(0.0, tracked.held_until_s)  # over in the next step

    def begin_step(
        self,
        *queues: "RankedQueue[Any]",
        num_free: int = 0,
        num_tokens: float = inf,
        is_idle: bool = False,
    ) -> float:
        """Read the scores queued since the last step and replace expired ranks in these queues.

        Returns the present time in seconds, which the load view now has too.

        Args:
            num_free: requests that could start now, by seats.
            num_tokens: prompt tokens that could be computed in this step.
            is_idle: True if no request runs.
        """
        self.load.now_s = self.clock()
        self._take_late(queues)
        self._score_waiting(queues)
        for queue in queues:
            if queue.held and self.scoring is not None:
                self._end_holds(self.scoring, queue, num_free, num_tokens, is_idle)
        now_s = self.load.now_s
        for queue in queues:
            for item in queue.pop_expired(now_s):
                self.expire(item.lengthwise)
                queue.add(item)
        self.load.num_waiting = sum([len(queue.entries) + len(queue.held) for queue in queues])
        if self.shares is not None and self.shares.is_contended:
            self.shares.refresh()
        return now_s

    def _take_late(self, queues: Iterable["RankedQueue[Any]"]) -> None:
        if not self.late_scores.inbox:
            return
        for tracked, late in self.late_scores.take():
            if late.reason:
                self.annotation_counts.count(late.reason)
            if late.score is not None:
                # A resident uses the score only when it waits again.
                tracked.late_score = late
            for queue in queues:
                self._end_hold(queue, tracked)

    def _score_waiting(self, queues: Iterable["RankedQueue[Any]"]) -> None:
        """Score what still waits of the requests that the last step could have started."""
        unscored, self._unscored = self._unscored, []
        for tracked in unscored:
            if any(tracked.view.number in queue for queue in queues):
                self._score(tracked)
            else:
                self.annotation_counts.count("at_once")

    def _end_holds(
        self,
        scoring: PromptScoring,
        queue: "RankedQueue[Any]",
        num_free: int,
        num_tokens: float,
        is_idle: bool,
    ) -> None:
        """Queue the held requests whose time is over; all of them if nothing is scarce.

        An idle engine first waits for the scores, as a step without requests would do nothing.
        """
        held = [item.lengthwise for item in queue.held.values()]
        over_s = held[0].held_until_s
        is_contended = (
            self._scores_all
            or len(queue) + len(held) > num_free
            or num_tokens
            < sum(one.view.prompt_tokens for one in held)
            + sum(item.lengthwise.view.prompt_tokens for item in queue)
        )
        if is_contended:
            for tracked in held:
                self._score(tracked)
            if is_idle:
                scoring.wait(over_s - self.load.now_s)
        else:
            self._unscored += [tracked for tracked in held if tracked.unscored is not None]
        self.load.now_s = self.clock()
        self._take_late([queue])
        if not (is_contended and is_idle):
            over_s = self.load.now_s if is_contended else inf
        for item in [one for one in queue.held.values() if one.lengthwise.held_until_s <= over_s]:
            self._end_hold(queue, item.lengthwise)

    def _end_hold(self, queue: "RankedQueue[Any]", tracked: RankedRequest) -> None:
        """Rank a request anew where it waits, and hold it no longer."""
        if (item := queue.remove(tracked.view.number)) is not None:
            if tracked.held_until_s > -inf and tracked.late_score is None:
                self._median.arrived(tracked.view)  # scores that arrived meanwhile count
            tracked.held_until_s = -inf
            self.rerank(tracked)
            queue.add(item)

    def admitted(self, tracked: RankedRequest, started_s: float) -> None:
        """Report an admission to the observers, and an end of thinking in the prompt."""
        for observer in self.at["admitted"]:
            observer.admitted(tracked.view, started_s)
        for observer in self.observers if tracked.thinking_over else ():
            observer.thinking_ended(tracked.view, started_s)

    def emitted(
        self,
        views: Sequence[RequestView],
        outputs: Sequence[Sequence[int]],
        counts: Sequence[int],
        now_s: float,
    ) -> None:
        """Report a step's tokens, the newest `counts` of the outputs, and ends of thinking."""
        end = self.think_end
        for observer in self.at["emitted"]:
            observer.emitted_each(views, counts, now_s)
        for view, output, count in zip(views, outputs, counts, strict=True) if end else ():
            if end[-1] in output[-count:] and ends_thinking(output, count, end):
                for observer in self.observers:
                    observer.thinking_ended(view, now_s)

    def _use_late(self, tracked: RankedRequest, late: LateScore) -> None:
        tracked.view.score, tracked.view.quantiles = late.score, late.quantiles
        tracked.late_score = None
        self.annotation_counts.late += 1

    def requeue(self, tracked: RankedRequest, *, generated_tokens: int, preemptions: int) -> None:
        """Rank a resident that has lost its blocks and waits again."""
        view = tracked.view
        view.phase = Phase.WAITING
        view.generated_tokens = generated_tokens
        view.preemptions = preemptions
        if self.shares is not None:
            self.shares.waits(view)
        self._score(tracked)
        self.rerank(tracked)
        for observer in self.observers:
            observer.evicted(view, self.load.now_s)

    def rerank(self, tracked: RankedRequest) -> None:
        """Replace the rank of a request after an event, unless the rank is sticky."""
        if tracked.late_score is not None and tracked.view.phase is Phase.WAITING:
            self._use_late(tracked, tracked.late_score)
            self._median.arrived(tracked.view)
        if not tracked.rank.sticky:
            self.set_rank(tracked, ask_rank(self.policy, tracked.view, self.load))

    def expire(self, tracked: RankedRequest) -> None:
        """Replace a rank that has ended in time by its successor, or by a new one."""
        self.num_expired += 1
        for _ in range(_MAX_SUCCESSORS):
            rank = tracked.rank.then
            self.set_rank(tracked, rank or ask_rank(self.policy, tracked.view, self.load))
            if tracked.rank.valid_until_s > self.load.now_s:
                return
        raise InvalidDecision(
            f"policy {self.policy.name!r} keeps returning ranks that have ended "
            f"(valid_until_s {tracked.rank.valid_until_s} at {self.load.now_s} s); "
            "return a later time, or none"
        )

    def finished(self, tracked: RankedRequest, output_tokens: int) -> None:
        """Count the length of an output that has ended."""
        self._median.finished(tracked.view, output_tokens)

    def end_step(self, started_s: float) -> None:
        """Count a step that began at `started_s` and has ended now."""
        load = self.load
        # Asynchronous engines begin a step before the one before has ended.
        began_s = max(started_s, load.last_step_end_s)
        load.now_s = load.last_step_end_s = self.clock()
        load.step += 1
        load.mean_step_s += (load.now_s - began_s - load.mean_step_s) / load.step

    def set_rank(self, tracked: RankedRequest, rank: Rank) -> None:
        """Set the rank that the policy made for a request or for its group.

        Raises InvalidDecision for a lane that does not fit beside the engine's own priority.
        """
        tracked.view.previous = tracked.rank = rank
        if (priority := tracked.priority) is not None:
            if not (isinstance(rank.lane, int) and -(2**31) <= rank.lane < 2**31):
                raise InvalidDecision(
                    f"policy {describe(self.policy)} ranked request {tracked.view.request_id!r} in "
                    f"lane {rank.lane!r}; under the engine's own priority use whole numbers from "
                    "-2**31 to 2**31 - 1"
                )
            key: Any = (rank.key, tracked.view.arrival_s)
            # `then` stays as it is: it is set here too, once this rank has ended.
            tracked.rank = rank._replace(
                lane=priority * _PRIORITY_STRIDE + rank.lane,
                key=key,
                evict_key=None if rank.evict_key is None else (priority, *rank.evict_key),
            )
        tracked.rerank_at_tokens = tracked.view.generated_tokens + rank.valid_tokens


def ends_thinking(output: Sequence[int], num_new: int, marker: tuple[int, ...]) -> bool:
    """Return whether one of the newest `num_new` tokens of `output` completes the marker."""
    ends = range(max(len(marker), len(output) - num_new + 1), len(output) + 1)
    return any(tuple(output[end - len(marker) : end]) == marker for end in ends)


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


class RankedQueue(RankOrder[Item]):
    """Waiting items in order, with a timer for each ending rank.

    With `shares` that order holds inside a client, and clients take turns in each lane. `plan`
    charges an item to its client as its admission would, and hides it until `unplan`. Held items
    are in no order.
    """

    def __init__(self, shares: ServiceShares | None = None) -> None:
        super().__init__()
        self._timers: RankTimers[Item] = RankTimers(self.find, self.entries)
        self._shares = shares
        self._of: dict[Share, RankOrder[Item]] = {}
        """The items of each client, once there are several."""
        self._plans: dict[int, Callable[[], None]] = {}
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
                self._of.setdefault(share, RankOrder()).add(each)

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
        if self._shares is not None:
            view = item.lengthwise.view
            self._plans[view.number] = self._shares.plan(view)

    def unplan(self) -> None:
        """Take back all plans."""
        while self._plans:
            self._plans.popitem()[1]()

    def in_lane(self, lane: float) -> Iterable[RankEntry[Item]]:  # type: ignore[override]
        """Return the entries with this `Rank.lane`, in order; one passed over is planned."""
        shares = self._shares if self._of else None
        return super().in_lane(lane) if shares is None else self._in_turns(lane, shares)

    def _in_turns(self, lane: float, shares: ServiceShares) -> Iterator[RankEntry[Item]]:
        left = {
            share: (entry for entry in order.in_lane(lane) if entry[2] not in self._plans)
            for share, order in self._of.items()
        }
        firsts = {share: entry for share in left for entry in itertools.islice(left[share], 1)}
        while firsts:
            share = shares.next_of(firsts)
            entry = firsts.pop(share)
            yield entry
            self.plan(entry[3])
            firsts.update((share, entry) for entry in itertools.islice(left[share], 1))

    def in_order(self) -> Iterator[Item]:
        """Yield the items in the order of their admission; one passed over is planned."""
        lane = -inf
        while (lane := self.lane_after(lane)) < inf:
            for entry in self.in_lane(lane):
                yield entry[3]

    def first(self) -> Item:
        """Return the most urgent item; IndexError if the queue is empty."""
        if self._shares is None or len(self._of) < 2:
            return self.entries[0][3]
        lane, each = self.entries[0][0], self._of.items()
        firsts = {of: order.entries[0] for of, order in each if order.entries[0][0] == lane}
        return firsts[self._shares.next_of(firsts)][3]

    def pop_first(self) -> Item:
        """Remove and return the most urgent item; IndexError if the queue is empty."""
        item = self.first()
        self.remove(item.lengthwise.view.number)
        return item

    def first_few(self, count: int) -> list[Item]:
        """Return the most urgent `count` items, or all of a shorter queue."""
        if len(self._of) < 2:
            return [entry[3] for entry in self.entries[:count]]
        few = list(itertools.islice(self.in_order(), count))
        self.unplan()
        return few

    def pop_expired(self, now_s: float) -> list[Item]:
        """Remove and return every item whose rank ended at or before `now_s`."""
        expired: list[Item] = []
        if self._timers.next_s <= now_s:  # rarely: no generator is made in most steps
            for item in self._timers.pop(now_s):
                self.remove(item.lengthwise.view.number)
                expired.append(item)
        return expired


def _entry(item: Item) -> RankEntry[Item]:
    tracked = item.lengthwise
    return tracked.rank.lane, tracked.rank.key, tracked.view.number, item


_lane = itemgetter(0)
