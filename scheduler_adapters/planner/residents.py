"""The requests that hold KV blocks in a real engine, and their newest ranks.

The engine reports each event of a resident. The policy ranks a resident anew after an event,
or when its last rank ends, and never otherwise.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain
from math import inf
from typing import Generic

from scheduler_adapters.planner.engine_view import EngineView
from scheduler_adapters.planner.ranked_queue import Item, RankedQueue, RankTimers
from scheduler_adapters.planner.request_tracker import RequestTracker
from scheduler_adapters.views import Phase, Rank

# Names of their own: to look one up in the enumeration takes ten times as long.
_PREFILL, _REASONING, _ANSWERING = Phase.PREFILL, Phase.REASONING, Phase.ANSWERING


class Residents(Generic[Item]):
    """The residents of one engine, by phase and receive number."""

    def __init__(
        self, tracker: RequestTracker, view: EngineView[Item], waiting: RankedQueue[Item]
    ) -> None:
        self.tracker = tracker
        self.view = view
        self._waiting = waiting
        self.think_end = tracker.events.think_end if tracker.policy.traits.sees_thinking else ()
        self.prefilling: dict[int, Item] = {}
        self.decoding: dict[int, Item] = {}
        self.num_loaded = 0
        """Waiting requests that hold blocks and could run, as of the newest `count`."""
        self.left_out: dict[int, float] = {}
        """Receive number of each resident left out of the newest step -> end of its last step."""
        self.has_momentary = False
        """True once a rank was valid for one token of a whole group, as SLAI's are."""
        self.reordered = set[int]()
        """Requests whose place among the decodes changed since this was emptied."""
        self._thinking: dict[int, Item] = {}
        """The decodes in their reasoning phase."""
        self.worst_evict_key: tuple[float, ...] = ()
        """Upper bound of the residents' evict keys."""
        self._token_checks: dict[int, list[int]] = defaultdict(list)
        """Step -> residents whose rank may end with its tokens."""
        self._timers: RankTimers[Item] = RankTimers(self._find, self)
        tracker.load.total_blocks = view.total_blocks

    def __len__(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def __iter__(self) -> Iterator[Item]:
        return chain(self.decoding.values(), self.prefilling.values())

    # Events of the engine.

    def admitted(self, item: Item) -> None:
        """Add a waiting request that became resident in the step just scheduled."""
        tracked = item.lengthwise
        self.tracker.started(tracked.view)
        tracked.view.phase = _PREFILL
        # An asynchronous engine delivers the tokens of a step that ran before the eviction.
        tracked.view.generated_tokens = len(self.view.output(item))
        tracked.prefill_seen = False
        self.prefilling[tracked.view.number] = item
        self._watch(item)

    def left(self, item: Item) -> None:
        """Remove a request that finished or waits again; its view keeps the tokens so far.

        A request that is not resident is ignored.
        """
        number = item.lengthwise.view.number
        self.prefilling.pop(number, None)
        if number in self.decoding:
            self._see_tokens(item)
            del self.decoding[number]
            self.reordered.add(number)
            self._thinking.pop(number, None)

    def step_planned(self) -> None:
        """Update residents and load view before a step is planned.

        Asynchronous engines plan it while the step before runs. A prefill that ends in that step
        is already a decode, though its first token has yet to arrive.
        """
        for item in list(self.prefilling.values()):
            if self.view.computed(item) >= item.lengthwise.view.context_tokens:
                self._start_decode(item)
                self._rerank(item)
        self.count()

    def step_ended(self, *, thinking_may_end: bool = True) -> None:
        """Rank the residents that the step has changed or whose rank has ended with it.

        `thinking_may_end`: False if the last id of `think_end` is not among the new tokens, for an
        engine that can tell more quickly than by reading every resident's output.
        """
        changed = []
        for item in list(self.prefilling.values()):
            tracked = item.lengthwise
            if len(self.view.output(item)) > tracked.view.generated_tokens:
                self._start_decode(item)
                changed.append(item)
            elif not tracked.prefill_seen:
                tracked.prefill_seen = True
                changed.append(item)
        self.count()
        for item in changed:
            self._rerank(item)
        if thinking_may_end and (end := self.think_end):
            for item in list(self._thinking.values()):
                if tuple(self.view.output(item)[-len(end) :]) == end:
                    tracked = item.lengthwise
                    del self._thinking[tracked.view.number]
                    tracked.thinking_over = True
                    self._see_tokens(item)
                    tracked.view.phase = _ANSWERING
                    self._rerank(item)
        for number in self._token_checks.pop(self.tracker.load.step, ()):
            decode = self.decoding.get(number)
            if decode is not None and not self._rank_if_due(decode, {}):
                self._watch(decode)

    def count(self) -> None:
        """Update the load view."""
        load, view = self.tracker.load, self.view
        self.num_loaded = len(view.loaded())
        load.num_waiting = len(self._waiting.entries) + self.num_loaded
        load.num_prefilling = len(self.prefilling)
        load.num_decoding = len(self.decoding)
        load.used_blocks = view.total_blocks - self.free_blocks()

    def _start_decode(self, item: Item) -> None:
        tracked, number = item.lengthwise, item.lengthwise.view.number
        self.decoding[number] = self.prefilling.pop(number)
        self.reordered.add(number)
        tracked.view.phase = _ANSWERING
        if self.think_end and not tracked.thinking_over:
            tracked.view.phase = _REASONING
            self._thinking[number] = item
        self._see_tokens(item)

    def _see_tokens(self, item: Item) -> None:
        view = item.lengthwise.view
        view.generated_tokens = len(self.view.output(item))
        view.last_token_s = self.left_out.get(view.number, self.tracker.load.last_step_end_s)
        if view.phase is _REASONING:
            view.thinking_tokens = view.generated_tokens

    # Ranks. One that a group shares for one token is momentary: it is replaced only when a step is
    # too small for all residents, else it changes nothing. Others are replaced as they end.

    def _rerank(self, item: Item) -> None:
        self.tracker.rerank(item.lengthwise)
        self._watch(item)

    def _watch(self, item: Item) -> None:
        tracked = item.lengthwise
        rank, view = tracked.rank, tracked.view
        self.reordered.add(view.number)
        if rank.evict_key is not None and rank.evict_key > self.worst_evict_key:
            self.worst_evict_key = rank.evict_key
        if _is_momentary(rank):
            self.has_momentary = True
            return
        self._timers.add(tracked)
        if tracked.rerank_at_tokens < inf and view.phase > _PREFILL:
            missing = tracked.rerank_at_tokens - len(self.view.output(item))
            self._token_checks[self.tracker.load.step + max(1, int(missing))].append(view.number)

    def _rank_if_due(self, item: Item, shared: dict[Hashable, Rank]) -> bool:
        """Replace the rank of a decode that has generated the tokens it was valid for."""
        tracked = item.lengthwise
        if len(self.view.output(item)) < tracked.rerank_at_tokens:
            return False
        self._see_tokens(item)
        group = tracked.rank.group
        if group in shared:
            self.tracker.set_rank(tracked, shared[group])
            self.reordered.add(tracked.view.number)
        else:
            self._rerank(item)
            if group is not None and tracked.rank.group == group:
                assert tracked.view.previous is not None
                shared[group] = tracked.view.previous
        return True

    def rank_momentary(self) -> None:
        """Replace the momentary ranks of decodes, with the time at which the last step ended."""
        load, shared = self.tracker.load, dict[Hashable, Rank]()
        now_s, load.now_s = load.now_s, load.last_step_end_s
        for item in self.decoding.values():
            self._rank_if_due(item, shared)
        load.now_s = now_s
        for item in self.decoding.values():
            rank = item.lengthwise.rank
            if rank.valid_until_s <= now_s and _is_momentary(rank):
                self._expire(item)

    def expire_in_time(self) -> None:
        """Replace the ranks that have ended by now."""
        for item in self._timers.pop(self.tracker.load.now_s):
            self._expire(item)

    def _find(self, number: int) -> Item | None:
        return self.decoding.get(number) or self.prefilling.get(number)

    def _expire(self, item: Item) -> None:
        if item.lengthwise.view.number in self.decoding:
            self._see_tokens(item)
        self.tracker.expire(item.lengthwise)
        self._watch(item)

    # Tokens and blocks.

    def left_to_prefill(self, item: Item) -> int:
        """Return the tokens of a prefill in progress that are still to be computed."""
        return self.view.context(item) - self.view.computed(item)

    def freed_blocks(self, items: Sequence[Item], hit_by: Item | None = None) -> int:
        """Return `EngineView.freed`, and the blocks promised to prefills among these residents."""
        prefills = (i for i in items if i.lengthwise.view.number in self.prefilling)
        return self.view.freed(items, hit_by) + sum(map(self.view.missing, prefills))

    def free_blocks(self) -> int:
        """Return the blocks that are free and not promised to a prefill in progress."""
        free = self.view.free_blocks()
        if self.prefilling:
            free -= sum(map(self.view.missing, self.prefilling.values()))
        return free

    def any_after(self, key: tuple[float, ...] | None) -> bool:
        """Return whether a resident has a greater `evict_key`; False for None."""
        if key is None or self.worst_evict_key <= key:
            return False
        keys = (item.lengthwise.rank.evict_key for item in self)
        self.worst_evict_key = max((each for each in keys if each is not None), default=())
        return self.worst_evict_key > key


def _is_momentary(rank: Rank) -> bool:
    return rank.valid_tokens == 1 and rank.group is not None
