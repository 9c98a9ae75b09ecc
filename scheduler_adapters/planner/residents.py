"""The requests that hold KV blocks in a real engine, their ranks kept as new as a policy needs.

The engine tells of each event of a resident; the policy is asked when something changed, or when
its last rank ends, and never otherwise. A `Border` is what the planner must know of the engine.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence, Sized
from heapq import heapify, heappop, heappush
from itertools import chain
from math import inf
from typing import Generic, Protocol, TypeVar

from scheduler_adapters.planner.ranking import Ranker, Tracked
from scheduler_adapters.views import Phase, Rank

Item = TypeVar("Item")
_Handled = TypeVar("_Handled")
# Names of their own: to look one up in the enumeration takes ten times as long.
_PREFILL, _REASONING, _ANSWERING = Phase.PREFILL, Phase.REASONING, Phase.ANSWERING


class Border(Protocol[_Handled]):
    """The engine as a planner sees it, counted in tokens and blocks; it can be told to evict."""

    @property
    def max_num_seqs(self) -> int:
        """Requests that may be resident at present."""

    max_tokens: int
    """Token budget of a step."""
    whole_prompts: bool
    """Whether the engine computes every prompt in one step."""
    block_tokens: int
    max_growth: int
    """Most blocks that the next token of a decode takes."""
    total_blocks: int
    watermark_blocks: int
    """Blocks that an admission must leave free."""
    think_end: tuple[int, ...]
    """Token ids that end thinking; empty where the policy does not rank by phase."""

    def tracked(self, item: _Handled) -> Tracked: ...

    def output(self, item: _Handled) -> list[int]:
        """Return the token ids generated so far."""

    def computed(self, item: _Handled) -> int:
        """Return the tokens of a resident whose KV is there."""

    def context(self, item: _Handled) -> int:
        """Return the number of tokens, prompt and output."""

    def max_chunk(self) -> int | None:
        """Return the engine's own limit of one request's prefill tokens in the next step."""

    def is_blocked(self, item: _Handled, newcomers: Sequence[_Handled]) -> bool:
        """Return whether the engine would pass over a waiting request, after these newcomers."""

    def begin_step(self) -> None:
        """A step is about to be planned, and the engine has moved on since the last one."""

    def loaded(self) -> Sequence[_Handled]:
        """Return the waiting requests that hold blocks and could run."""

    def need(self, item: _Handled, more: int = 0) -> tuple[int, int]:
        """Return the tokens that a waiting request has to compute, and the free blocks it takes.

        Args:
            more: tokens beyond these that the blocks have to hold.
        """

    def most_needed(self, item: _Handled, more: int = 0) -> tuple[int, int]:
        """Return what `need` does, or more where to be exact takes long."""

    def missing(self, item: _Handled) -> int:
        """Return the blocks that a prefill in progress will still take."""

    def growth(self, items: Sequence[_Handled]) -> int:
        """Return the blocks that the next tokens of these decodes take."""

    def freed(self, items: Sequence[_Handled], hit_by: _Handled | None = None) -> int:
        """Return the blocks that come free once these residents have lost theirs.

        Args:
            hit_by: a waiting request, which takes those of them that hold its first tokens.
        """

    def release(self, items: Iterable[_Handled]) -> None:
        """Free the blocks that these residents hold and will not read again."""

    def ending_in(self, items: Iterable[_Handled], token: int) -> list[_Handled]:
        """Return those of these decodes whose newest token is `token`."""

    def free_blocks(self) -> int: ...

    def evict(self, item: _Handled) -> bool:
        """Queue a resident again without its blocks; False, at no change, where none comes free."""


class Residents(Generic[Item]):
    """Follows the residents of one engine."""

    def __init__(self, ranker: Ranker, border: Border[Item], waiting: Sized) -> None:
        self.ranker = ranker
        self.border = border
        self._waiting = waiting
        self.prefilling: dict[str, Item] = {}
        self.decoding: dict[str, Item] = {}
        self.num_loaded = 0
        """Waiting requests that hold blocks and could run, as of the newest `count`."""
        self.left_out: dict[int, float] = {}
        """Residents left out of the newest step: number -> end of the last step that they ran."""
        self.has_momentary = False
        """Whether a rank was ever valid for one token of a whole group, as SLAI's are."""
        self.reordered: dict[int, str] = {}
        """Requests whose place among the decodes changed since this was emptied: number -> id."""
        self._thinking: dict[str, Item] = {}
        """The decodes in their reasoning phase."""
        self.worst_evict_key: tuple[float, ...] = ()
        """No resident has a greater evict_key; the one that had it may have left."""
        self._token_checks: dict[int, list[str]] = defaultdict(list)
        """Step -> residents whose rank may by then have lasted its tokens."""
        self._time_checks: list[tuple[float, str]] = []
        """Heap of (end of a rank, resident)."""
        ranker.load.total_blocks = border.total_blocks

    def __len__(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def __iter__(self) -> Iterator[Item]:
        return chain(self.decoding.values(), self.prefilling.values())

    # Events of the engine.

    def admitted(self, item: Item) -> None:
        """A waiting request became resident in the step that was just scheduled."""
        tracked, load = self.border.tracked(item), self.ranker.load
        load.num_started += 1
        tracked.view.admission_number = load.num_started
        tracked.view.phase = _PREFILL
        # An asynchronous engine delivers the tokens of a step that ran before the eviction.
        tracked.view.generated_tokens = len(self.border.output(item))
        tracked.prefill_seen = False
        self.prefilling[tracked.view.request_id] = item
        self._watch(item)

    def left(self, request_id: str) -> None:
        """A request finished; one that is no resident is ignored."""
        item = self.decoding.pop(request_id, None)
        if item is None:
            self.prefilling.pop(request_id, None)
            return
        self.reordered[self.border.tracked(item).view.number] = request_id
        self._thinking.pop(request_id, None)

    def evicted(self, item: Item) -> None:
        """A resident has to wait again; its view keeps what it had generated until now."""
        name = self.border.tracked(item).view.request_id
        if name in self.decoding:
            self.see_tokens(item)
        self.left(name)

    def step_planned(self) -> None:
        """A step is about to be planned: bring the residents and the load view up to date.

        Asynchronous engines plan it while the one before runs. A prefill that ends in that one is a
        decode from here on, though its first token has yet to come.
        """
        for item in list(self.prefilling.values()):
            view = self.border.tracked(item).view
            if self.border.computed(item) >= view.context_tokens:
                self._start_decode(item)
                self._rerank(item)
        self.count()

    def step_ended(self, *, thinking_may_end: bool = True) -> None:
        """Rank the residents that the step has changed, and those whose rank has ended with it.

        Args:
            thinking_may_end: whether the last id of `Border.think_end` is among the new tokens, for
                an engine that knows: looking at each resident costs more than the rest of this.
        """
        changed = []
        for item in list(self.prefilling.values()):
            tracked = self.border.tracked(item)
            if len(self.border.output(item)) > tracked.view.generated_tokens:
                self._start_decode(item)
                changed.append(item)
            elif not tracked.prefill_seen:
                tracked.prefill_seen = True
                changed.append(item)
        self.count()
        for item in changed:
            self._rerank(item)
        if self._thinking and thinking_may_end:
            self._follow_thinking()
        for request_id in self._token_checks.pop(self.ranker.load.step, ()):
            decode = self.decoding.get(request_id)
            if decode is not None and not self._rank_if_due(decode, {}):
                self._watch(decode)

    def count(self) -> None:
        """Bring the load view up to date."""
        load, border = self.ranker.load, self.border
        self.num_loaded = len(border.loaded())
        load.num_waiting = len(self._waiting) + self.num_loaded
        load.num_prefilling = len(self.prefilling)
        load.num_decoding = len(self.decoding)
        load.used_blocks = border.total_blocks - self.free_blocks()

    def _start_decode(self, item: Item) -> None:
        tracked = self.border.tracked(item)
        del self.prefilling[tracked.view.request_id]
        self.decoding[tracked.view.request_id] = item
        self.reordered[tracked.view.number] = tracked.view.request_id
        tracked.view.phase = _ANSWERING
        if self.border.think_end and not tracked.thinking_over:
            tracked.view.phase = _REASONING
            self._thinking[tracked.view.request_id] = item
        self.see_tokens(item)

    def _follow_thinking(self) -> None:
        end = self.border.think_end
        for item in self.border.ending_in(self._thinking.values(), end[-1]):
            if tuple(self.border.output(item)[-len(end) :]) == end:
                tracked = self.border.tracked(item)
                del self._thinking[tracked.view.request_id]
                tracked.thinking_over = True
                self.see_tokens(item)
                tracked.view.phase = _ANSWERING
                self._rerank(item)

    def see_tokens(self, item: Item) -> None:
        """Bring the view of a decode up to date."""
        view = self.border.tracked(item).view
        view.generated_tokens = len(self.border.output(item))
        view.last_token_s = self.left_out.get(view.number, self.ranker.load.last_step_end_s)
        if view.phase is _REASONING:
            view.thinking_tokens = view.generated_tokens

    # Asking for ranks. A rank that a group shares for one token is momentary: it is asked for only
    # when a step is too small for all residents, else it changes nothing. Others are asked in time.

    def _rerank(self, item: Item) -> None:
        self.ranker.rerank(self.border.tracked(item))
        self._watch(item)

    def _watch(self, item: Item) -> None:
        """Look at a resident again when its rank ends."""
        tracked = self.border.tracked(item)
        rank, view = tracked.rank, tracked.view
        self.reordered[view.number] = view.request_id
        if rank.evict_key is not None and rank.evict_key > self.worst_evict_key:
            self.worst_evict_key = rank.evict_key
        if _is_momentary(rank):
            self.has_momentary = True
            return
        if rank.valid_until_s < inf:
            heappush(self._time_checks, (rank.valid_until_s, view.request_id))
            self._forget_time_checks()
        if tracked.ask_at_tokens < inf and view.phase > _PREFILL:
            missing = tracked.ask_at_tokens - len(self.border.output(item))
            self._token_checks[self.ranker.load.step + max(1, int(missing))].append(view.request_id)

    def _forget_time_checks(self) -> None:
        # A check outlives its rank; rebuilt once such checks are the majority.
        residents = self.decoding | self.prefilling if len(self._time_checks) > 4096 else None
        if residents is None or len(self._time_checks) <= 4 * len(residents):
            return
        ranks = ((self.border.tracked(item).rank, name) for name, item in residents.items())
        self._time_checks = [
            (rank.valid_until_s, name) for rank, name in ranks if rank.valid_until_s < inf
        ]
        heapify(self._time_checks)

    def _rank_if_due(self, item: Item, shared: dict[Hashable, Rank]) -> bool:
        """Rank a decode if it has generated all the tokens that its rank was valid for."""
        tracked = self.border.tracked(item)
        if len(self.border.output(item)) < tracked.ask_at_tokens:
            return False
        self.see_tokens(item)
        group = tracked.rank.group
        if group in shared:
            self.ranker.take(tracked, shared[group])
            self.reordered[tracked.view.number] = tracked.view.request_id
        else:
            self._rerank(item)
            if group is not None and tracked.rank.group == group:
                assert tracked.view.previous is not None
                shared[group] = tracked.view.previous
        return True

    def rank_momentary(self) -> None:
        """Rank the decodes whose rank was momentary, as if asked when the step ended."""
        load, shared = self.ranker.load, dict[Hashable, Rank]()
        now_s, load.now_s = load.now_s, load.last_step_end_s
        for item in self.decoding.values():
            self._rank_if_due(item, shared)
        load.now_s = now_s
        for request_id, item in self.decoding.items():
            tracked = self.border.tracked(item)
            if tracked.rank.valid_until_s <= now_s and _is_momentary(tracked.rank):
                self._expire(request_id, item)

    def expire_in_time(self) -> None:
        """Replace the ranks that have ended by now."""
        while self._time_checks and self._time_checks[0][0] <= self.ranker.load.now_s:
            until_s, request_id = heappop(self._time_checks)
            item = self.decoding.get(request_id) or self.prefilling.get(request_id)
            if item is not None and self.border.tracked(item).rank.valid_until_s == until_s:
                self._expire(request_id, item)

    def _expire(self, request_id: str, item: Item) -> None:
        tracked = self.border.tracked(item)
        if request_id in self.decoding:
            self.see_tokens(item)
        self.ranker.expire(tracked)
        self._watch(item)

    # Tokens and blocks.

    def left_to_prefill(self, item: Item) -> int:
        """Return the tokens of a prefill in progress that are still to be computed."""
        return self.border.context(item) - self.border.computed(item)

    def freed_blocks(self, items: Sequence[Item], hit_by: Item | None = None) -> int:
        """Return what `Border.freed` does, and the blocks promised to prefills among these."""
        prefills = (i for i in items if self.border.tracked(i).view.request_id in self.prefilling)
        return self.border.freed(items, hit_by) + sum(map(self.border.missing, prefills))

    def free_blocks(self) -> int:
        """Return the blocks that are free and not promised to a prefill in progress."""
        free = self.border.free_blocks()
        if self.prefilling:
            free -= sum(map(self.border.missing, self.prefilling.values()))
        return free

    def any_after(self, key: tuple[float, ...]) -> bool:
        """Return whether a resident has a greater `evict_key`."""
        if self.worst_evict_key <= key:
            return False
        keys = (self.border.tracked(item).rank.evict_key for item in self)
        self.worst_evict_key = max((key for key in keys if key is not None), default=())
        return self.worst_evict_key > key


def _is_momentary(rank: Rank) -> bool:
    return rank.valid_tokens == 1 and rank.group is not None
