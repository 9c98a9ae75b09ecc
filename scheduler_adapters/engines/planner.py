"""Which residents run in the next step, who goes, and how many waiting requests come.

The rules are those of `simulator/reference.py`, where they stand in plain form; here they are cheap
enough for a real engine: as long as everybody fits into the step, nobody is asked and nothing is
sorted. The engine keeps its memory and its batch; a `Border` says what the planner needs to know.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import chain
from math import inf
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

from scheduler_adapters.engines.ranking import RankedQueue, Ranker, Tracked
from scheduler_adapters.views import UNLIMITED, Capability, Phase, Rank, StepRule

Item = TypeVar("Item")
_Handled = TypeVar("_Handled", contravariant=True)
_Entry = tuple[Any, ...]


class Border(Protocol[_Handled]):
    """What a planner asks of an engine, and the one thing it tells it. Tokens and blocks."""

    max_num_seqs: int
    max_tokens: int
    """Token budget of a step."""
    block_tokens: int
    total_blocks: int
    watermark_blocks: int
    """Blocks that an admission must leave free."""
    think_end: tuple[int, ...]
    """Token ids that end thinking; empty where nobody wants to know."""

    def tracked(self, item: _Handled) -> Tracked: ...

    def output(self, item: _Handled) -> list[int]:
        """The token ids generated so far."""

    def computed(self, item: _Handled) -> int:
        """Tokens of a resident whose KV is there."""

    def context(self, item: _Handled) -> int:
        """Number of tokens, prompt and output."""

    def growth(self, items: Sequence[_Handled]) -> int:
        """Blocks that the next tokens of these decodes take."""

    def free_blocks(self) -> int: ...

    def evict(self, item: _Handled) -> None:
        """Take a resident's blocks and queue it again; what it computed is computed anew."""


@dataclass(slots=True)
class Plan(Generic[Item]):
    """What the engine is to do in this step."""

    num_tokens: int
    newcomers: list[Item]
    """Waiting requests to admit, in this order."""
    chunk: int | None = None
    """Most prefill tokens of one request."""
    hidden: list[Item] = field(default_factory=list)
    """Residents to leave out of the step, with their KV kept."""
    last: Item | None = None
    """A resident whose prefill gets what is left of the budget, so it has to be served last."""


@dataclass(slots=True)
class _Step(Generic[Item]):
    """What has been placed so far, and what may still be."""

    rule: StepRule
    budget: float
    free_blocks: int
    """Blocks that are left once all that is placed has what it needs."""
    num_decodes: int = 0
    chunks: list[int] = field(default_factory=list)
    placed: set[int] = field(default_factory=set)
    """Numbers of the residents in the step."""
    displacing: list[Item] = field(default_factory=list)
    """Waiting requests that have seats and blocks, and no tokens yet."""
    newcomers: list[Item] = field(default_factory=list)
    """Waiting requests that have tokens."""
    last: Item | None = None
    admission_closed: bool = False

    def takes_decodes(self) -> bool:
        return (
            (self.rule.mixed or not self.chunks)
            and self.num_decodes < _limit(self.rule.max_decodes)
            and self.budget >= 1
        )

    def chunk(self, tokens: int) -> int:
        """How many of `tokens` a further prefill may compute in this step; 0 for none."""
        if not (self.rule.mixed or not self.num_decodes):
            return 0
        if len(self.chunks) >= _limit(self.rule.max_prefills):
            return 0
        if self.rule.whole_prompts:
            return tokens if self.cost(tokens) <= self.budget else 0
        return int(max(0, min(tokens, _limit(self.rule.chunk), self.budget)))

    def cost(self, tokens: int) -> float:
        """What a prefill of `tokens` takes from the budget."""
        if not self.rule.padded_tokens:
            return tokens
        longest = max(self.chunks, default=0)
        return (len(self.chunks) + 1) * max(tokens, longest) - len(self.chunks) * longest

    def add_prefill(self, chunk: int) -> None:
        self.budget -= self.cost(chunk)
        self.chunks.append(chunk)


def _limit(limit: int | None) -> float:
    return inf if limit is None else limit


class Planner(Generic[Item]):
    """Follows the residents of one engine and plans its steps by the policy's ranks."""

    def __init__(self, ranker: Ranker, border: Border[Item], waiting: RankedQueue[Item]) -> None:
        self.ranker = ranker
        self.border = border
        self.waiting = waiting
        self._prefilling: dict[str, Item] = {}
        self._decoding: dict[str, Item] = {}
        self._thinking: dict[str, Item] = {}
        """Those of the decoding that are in their reasoning phase."""
        self._evictable: list[tuple[tuple[float, ...], int, str]] = []
        """Heap of residents by evict_key, greatest first; entries outlive what they say."""
        self._hidden: set[int] = set()
        """Numbers of the residents that were left out of the newest step."""
        self._decodes_in_order: list[_Entry] | None = None
        """None where it has to be sorted anew."""
        self.num_deferred = 0
        """Sum of them over all steps."""
        self._evicted: set[int] = set()
        """Numbers evicted while this step is planned."""
        self._token_checks: dict[int, list[str]] = defaultdict(list)
        """Step -> residents whose rank may by then have generated its tokens."""
        self._has_momentary = False
        self._evicts = Capability.EVICT in ranker.policy.requires
        self._time_checks: list[tuple[float, str]] = []
        """Heap of (end of a rank, resident)."""

    # What happens in the engine.

    def admitted(self, item: Item) -> None:
        """A waiting request became resident in the step that was just scheduled."""
        tracked, load = self.border.tracked(item), self.ranker.load
        load.num_started += 1
        tracked.view.admission_number = load.num_started
        tracked.view.phase = Phase.PREFILL
        # An asynchronous engine delivers the tokens of a step that ran before the eviction.
        tracked.view.generated_tokens = len(self.border.output(item))
        tracked.prefill_seen = False
        self._prefilling[tracked.view.request_id] = item
        self._watch(item)

    def left(self, request_id: str) -> None:
        """A request finished, or has to wait again; one that is no resident is ignored."""
        item = self._decoding.pop(request_id, None)
        if item is None:
            self._prefilling.pop(request_id, None)
            return
        self._decodes_in_order = None
        self._thinking.pop(request_id, None)
        if self.border.tracked(item).view.number not in self._hidden:
            self._see_tokens(item)

    def step_ended(self) -> None:
        """Rank those whom the step has changed, and whose rank has ended with it."""
        changed = []
        for item in list(self._prefilling.values()):
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
        if self._thinking:
            self._follow_thinking()
        for request_id in self._token_checks.pop(self.ranker.load.step, ()):
            decode = self._decoding.get(request_id)
            if decode is not None and not self._rank_if_due(decode, {}):
                self._watch(decode)

    def count(self) -> None:
        """Bring the load view up to date."""
        load, border = self.ranker.load, self.border
        load.num_waiting = len(self.waiting)
        load.num_prefilling = len(self._prefilling)
        load.num_decoding = len(self._decoding)
        load.total_blocks = border.total_blocks
        load.used_blocks = border.total_blocks - self._free_blocks()

    def _start_decode(self, item: Item) -> None:
        tracked = self.border.tracked(item)
        del self._prefilling[tracked.view.request_id]
        self._decoding[tracked.view.request_id] = item
        self._decodes_in_order = None
        tracked.view.phase = Phase.ANSWERING
        if self.border.think_end and not tracked.thinking_over:
            tracked.view.phase = Phase.REASONING
            self._thinking[tracked.view.request_id] = item
        self._see_tokens(item)

    def _follow_thinking(self) -> None:
        end, output = self.border.think_end, self.border.output
        last = end[-1]
        for item in [i for i in self._thinking.values() if output(i)[-1] == last]:
            if tuple(output(item)[-len(end) :]) == end:
                self._end_thinking(item)

    def _end_thinking(self, item: Item) -> None:
        tracked = self.border.tracked(item)
        del self._thinking[tracked.view.request_id]
        tracked.thinking_over = True
        self._see_tokens(item)
        tracked.view.phase = Phase.ANSWERING
        self._rerank(item)

    def _see_tokens(self, item: Item) -> None:
        """Bring the view of a decode up to date that ran in the step that ended last."""
        view = self.border.tracked(item).view
        view.generated_tokens = len(self.border.output(item))
        view.last_token_s = self.ranker.load.last_step_end_s
        if view.phase is Phase.REASONING:
            view.thinking_tokens = view.generated_tokens

    # Asking. A rank that a group shares for one token is momentary: it is asked for only when a
    # step is too small for everybody, else it changes nothing. Others are asked in time.

    def _rerank(self, item: Item) -> None:
        self.ranker.rerank(self.border.tracked(item))
        self._watch(item)

    def _watch(self, item: Item) -> None:
        """Look at a resident again when its rank ends."""
        tracked = self.border.tracked(item)
        rank, view = tracked.rank, tracked.view
        self._decodes_in_order = None
        if self._evicts and rank.evict_key is not None:
            greatest_first = tuple(-number for number in rank.evict_key)
            heappush(self._evictable, (greatest_first, -view.number, view.request_id))
        if _is_momentary(rank):
            self._has_momentary = True
            return
        if rank.valid_until_s < inf:
            heappush(self._time_checks, (rank.valid_until_s, view.request_id))
            self._forget_time_checks()
        if tracked.ask_at_tokens < inf and view.phase > Phase.PREFILL:
            missing = tracked.ask_at_tokens - len(self.border.output(item))
            self._token_checks[self.ranker.load.step + max(1, int(missing))].append(view.request_id)

    def _forget_time_checks(self) -> None:
        # A check outlives its rank; rebuilt once such checks are the majority.
        residents = self._decoding | self._prefilling if len(self._time_checks) > 4096 else None
        if residents is None or len(self._time_checks) <= 4 * len(residents):
            return
        ranks = ((self.border.tracked(item).rank, name) for name, item in residents.items())
        self._time_checks = [
            (rank.valid_until_s, name) for rank, name in ranks if rank.valid_until_s < inf
        ]
        heapify(self._time_checks)

    def _rank_if_due(self, item: Item, shared: dict[Hashable, Rank]) -> bool:
        """Rank a decode if it has generated all that its rank was good for."""
        tracked = self.border.tracked(item)
        if len(self.border.output(item)) < tracked.ask_at_tokens:
            return False
        self._see_tokens(item)
        group = tracked.rank.group
        if group in shared:
            self.ranker.take(tracked, shared[group])
            self._decodes_in_order = None
        else:
            self._rerank(item)
            if group is not None and tracked.rank.group == group:
                shared[group] = tracked.rank
        return True

    def _rank_momentary(self) -> None:
        """Rank the decodes whose rank was momentary, as if asked when the step ended."""
        load, shared = self.ranker.load, dict[Hashable, Rank]()
        now_s, load.now_s = load.now_s, load.last_step_end_s
        for item in self._decoding.values():
            self._rank_if_due(item, shared)
        load.now_s = now_s
        for request_id, item in self._decoding.items():
            tracked = self.border.tracked(item)
            if tracked.rank.valid_until_s <= now_s and _is_momentary(tracked.rank):
                self._expire(request_id, item)

    def _expire_in_time(self) -> None:
        while self._time_checks and self._time_checks[0][0] <= self.ranker.load.now_s:
            until_s, request_id = heappop(self._time_checks)
            item = self._decoding.get(request_id) or self._prefilling.get(request_id)
            if item is not None and self.border.tracked(item).rank.valid_until_s == until_s:
                self._expire(request_id, item)

    def _expire(self, request_id: str, item: Item) -> None:
        tracked = self.border.tracked(item)
        if request_id in self._decoding and tracked.view.number not in self._hidden:
            self._see_tokens(item)
        self.ranker.expire(tracked)
        self._watch(item)

    # Planning.

    def plan(self) -> Plan[Item] | None:
        """The next step; None where there is nothing to do. Evicts whom the policy would."""
        if not (self._decoding or self._prefilling or self.waiting):
            return None
        self.count()
        self._expire_in_time()
        rule = self.ranker.policy.step_rule(self.ranker.load)
        self._evicted.clear()
        plan = self._all_fit(rule)
        if plan is None:
            if self._has_momentary:
                self._rank_momentary()
            plan = self._fill(rule)
            if not plan.num_tokens:
                # The engine must not stall because of a rule: work that can run does.
                plan = self._fill(UNLIMITED)
        return plan

    def _all_fit(self, rule: StepRule) -> Plan[Item] | None:
        """The step in which all residents run and all seats are taken; None if it is too small."""
        budget = min(_limit(rule.max_tokens), self.border.max_tokens) - len(self._decoding)
        if (
            rule.padded_tokens
            or rule.whole_prompts
            or len(self._decoding) > _limit(rule.max_decodes)
        ):
            return None
        # Each decode may need a block; if that bound does not fit, it is worth counting.
        free_blocks = self._free_blocks() - len(self._decoding)
        num_prefills = len(self._prefilling)
        for item in self._prefilling.values():
            budget -= min(self._left(item), _limit(rule.chunk))
        newcomers: list[Item] = []
        seats = min(self._free_seats(rule), _limit(rule.max_admissions))
        prefills_left = _limit(rule.max_prefills) - num_prefills
        if prefills_left < 0 or (seats > 0 and self.waiting and 0 < prefills_left < seats):
            return None
        if not rule.mixed and self._decoding and (num_prefills or (seats > 0 and self.waiting)):
            return None
        for item in self.waiting if prefills_left else ():
            if len(newcomers) >= seats:
                if rule.displace and self._may_displace(item):
                    return None
                break
            context = self.border.context(item)
            free_blocks -= self._blocks(context + rule.displace)
            budget -= min(context, _limit(rule.chunk))
            if budget < 0 or free_blocks < self.border.watermark_blocks:
                return None
            newcomers.append(item)
        if budget < 0 or free_blocks < 0:
            return None
        self._hidden.clear()
        used = min(_limit(rule.max_tokens), self.border.max_tokens) - budget
        return Plan(num_tokens=int(used), newcomers=newcomers, chunk=rule.chunk)

    def _fill(self, rule: StepRule) -> Plan[Item]:
        step: _Step[Item] = _Step(
            rule, min(_limit(rule.max_tokens), self.border.max_tokens), self._free_blocks()
        )
        if rule.displace:
            self._displace(step)
        decodes = self._decodes_in_order or self._in_order(self._decoding.values())
        prefills = self._in_order(chain(self._prefilling.values(), step.displacing))
        lane = -inf
        while (lane := self._next_lane(lane, decodes, prefills)) < inf:
            self._place_decodes(step, _in_lane(decodes, lane))
            for _, _, _, item in _in_lane(prefills, lane):
                if not self._place_prefill(step, item):
                    break
            if not rule.displace:
                self._admit(step, lane)
        if not self._evicted:
            self._decodes_in_order = decodes
        return Plan(
            num_tokens=step.num_decodes + sum(step.chunks),
            newcomers=step.newcomers,
            chunk=step.rule.chunk,
            hidden=self._hide(step, decodes, prefills),
            last=step.last,
        )

    def _hide(self, step: _Step[Item], decodes: list[_Entry], prefills: list[_Entry]) -> list[Item]:
        """The residents that are left out; who ran until now keeps the time of its newest token."""
        gone = step.placed | self._evicted if self._evicted else step.placed
        for _, _, number, item in decodes:
            if number not in gone and number not in self._hidden:
                self._see_tokens(item)
        newcomers = {self.border.tracked(item).view.number for item in step.displacing}
        left_out = [entry for entry in chain(decodes, prefills) if entry[2] not in gone]
        self._hidden = {number for _, _, number, _ in left_out} - newcomers
        self.num_deferred += len(self._hidden)
        return [item for _, _, number, item in left_out if number not in newcomers]

    def _in_order(self, items: Iterable[Item]) -> list[_Entry]:
        entries = []
        for item in items:
            tracked = self.border.tracked(item)
            entries.append((tracked.rank.lane, tracked.rank.key, tracked.view.number, item))
        entries.sort()
        return entries

    def _next_lane(self, lane: float, *residents: list[_Entry]) -> float:
        following = self.waiting.lane_after(lane)
        for entries in residents:
            at = bisect_right(entries, lane, key=_lane)
            if at < len(entries):
                following = min(following, entries[at][0])
        return following

    def _place_decodes(self, step: _Step[Item], entries: list[_Entry]) -> None:
        if step.free_blocks >= len(entries):
            self._place_all(step, entries)
            return
        for _, _, number, item in entries:
            if not step.takes_decodes():
                return
            if number not in self._evicted and self._secure_block(step, item):
                step.placed.add(number)
                step.num_decodes += 1
                step.budget -= 1

    def _place_all(self, step: _Step[Item], entries: list[_Entry]) -> None:
        """Place as many decodes as the step takes; there is a block for each of them."""
        if not step.rule.mixed and step.chunks:
            return
        room = min(step.budget, _limit(step.rule.max_decodes) - step.num_decodes)
        if self._evicted:
            entries = [entry for entry in entries if entry[2] not in self._evicted]
        if room < len(entries):
            entries = entries[: max(0, int(room))]
        step.free_blocks -= self.border.growth([entry[-1] for entry in entries])
        step.placed.update([entry[2] for entry in entries])
        step.num_decodes += len(entries)
        step.budget -= len(entries)

    def _place_prefill(self, step: _Step[Item], item: Item) -> bool:
        """Give a prefill its chunk. False once the step takes no further one."""
        number = self.border.tracked(item).view.number
        if number in self._evicted:
            return True
        left = self._left(item)
        chunk = step.chunk(left)
        if not chunk:
            return False
        if item in step.displacing:
            step.newcomers.append(item)
        elif chunk < min(left, _limit(step.rule.chunk)):
            # It gets what the others leave. The engine serves residents before newcomers, so one
            # that stands behind a newcomer would rob it, and has to wait instead.
            if step.newcomers:
                return False
            step.last = item
        step.add_prefill(chunk)
        step.placed.add(number)
        return True

    def _admit(self, step: _Step[Item], lane: float) -> None:
        if step.admission_closed:
            return
        for item in self.waiting.in_lane(lane):
            context = self.border.context(item)
            free_after = step.free_blocks - self._blocks(context)
            chunk = step.chunk(context)
            if (
                not chunk
                or free_after < self.border.watermark_blocks
                or len(step.newcomers) >= _limit(step.rule.max_admissions)
                or len(step.newcomers) >= self._free_seats(step.rule)
            ):
                step.admission_closed = True
                return
            step.free_blocks = free_after
            step.newcomers.append(item)
            step.add_prefill(chunk)

    # Blocks and seats.

    def _left(self, item: Item) -> int:
        return self.border.context(item) - self.border.computed(item)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.border.block_tokens)

    def _held(self, item: Item) -> int:
        """Blocks of a resident, those included that its prefill in progress will take."""
        name = self.border.tracked(item).view.request_id
        whole = name in self._prefilling
        return self._blocks(self.border.context(item) if whole else self.border.computed(item))

    def _free_blocks(self) -> int:
        """Blocks that are free and not promised to a prefill in progress."""
        promised = sum(
            self._blocks(self.border.context(item)) - self._blocks(self.border.computed(item))
            for item in self._prefilling.values()
        )
        return self.border.free_blocks() - promised

    def _free_seats(self, rule: StepRule) -> float:
        seats = min(self.border.max_num_seqs, _limit(rule.max_resident))
        return seats - len(self._decoding) - len(self._prefilling)

    # Eviction.

    def _secure_block(self, step: _Step[Item], asker: Item) -> bool:
        """Set aside the block for a decode's next token, by eviction where need be."""
        needed = self.border.growth([asker])
        while step.free_blocks < needed:
            victim = self._victim(step, asker)
            self._evict(step, victim)
            if victim is asker:
                return False
        step.free_blocks -= needed
        return True

    def _victim(self, step: _Step[Item], asker: Item) -> Item:
        """Who goes when `asker` finds no block: the last to keep after it, or itself."""
        victim = asker
        for item in chain(self._decoding.values(), self._prefilling.values()):
            tracked = self.border.tracked(item)
            if tracked.rank.evict_key is None or tracked.view.number in step.placed:
                continue
            if self._evict_order(item) > self._evict_order(victim):
                victim = item
        return victim

    def _evict_order(self, item: Item) -> tuple[bool, tuple[float, ...], int]:
        """Greater goes first; a request without evict_key goes for no other."""
        tracked = self.border.tracked(item)
        key = tracked.rank.evict_key
        return key is not None, key or (), tracked.view.number

    def _evict(self, step: _Step[Item], item: Item) -> None:
        step.free_blocks += self._held(item)
        self._evicted.add(self.border.tracked(item).view.number)
        self.border.evict(item)

    def _displace(self, step: _Step[Item]) -> None:
        """Make room for the best waiting requests where worse residents can give it."""
        taken: set[int] = set()
        while (best := self._best_waiting(taken)) is not None:
            number = self.border.tracked(best).view.number
            if number in self._evicted or not self._make_room(step, best):
                return
            step.free_blocks -= self._blocks(self.border.context(best))
            step.displacing.append(best)
            taken.add(number)

    def _best_waiting(self, taken: set[int]) -> Item | None:
        fresh = (i for i in self.waiting if self.border.tracked(i).view.number not in taken)
        return next(fresh, None)

    def _make_room(self, step: _Step[Item], best: Item) -> bool:
        """Evict the fewest worst residents that let `best` in; none where that is impossible."""
        if len(step.displacing) >= _limit(step.rule.max_admissions):
            return False
        growth = self.border.growth(list(self._decoding.values()))
        room = step.free_blocks - growth - self._blocks(self.border.context(best) + 1)
        seats = self._free_seats(step.rule) - len(step.displacing) - 1
        victims = []
        if room < 0 or seats < 0:
            for victim in self._worse_than(best):
                victims.append(victim)
                grows = self.border.tracked(victim).view.request_id in self._decoding
                room += self._held(victim) + (self.border.growth([victim]) if grows else 0)
                seats += 1
                if room >= 0 and seats >= 0:
                    break
        if room < 0 or seats < 0:
            return False
        for victim in victims:
            self._evict(step, victim)
        return True

    def _may_displace(self, best: Item) -> bool:
        """Whether some resident is worse than a waiting request."""
        limit = self.border.tracked(best).rank.evict_key
        while limit is not None and self._evictable:
            greatest_first, _, name = self._evictable[0]
            item = self._decoding.get(name) or self._prefilling.get(name)
            key = None if item is None else self.border.tracked(item).rank.evict_key
            if key is not None and tuple(-number for number in key) == greatest_first:
                return key > limit
            heappop(self._evictable)
        return False

    def _worse_than(self, best: Item) -> list[Item]:
        """Residents that may go for `best`, the worst first."""
        limit = self.border.tracked(best).rank.evict_key
        if limit is None:
            return []
        worse = [
            item
            for item in chain(self._decoding.values(), self._prefilling.values())
            if (key := self.border.tracked(item).rank.evict_key) is not None and key > limit
        ]
        return sorted(worse, key=self._evict_order, reverse=True)


_lane = itemgetter(0)


def _is_momentary(rank: Rank) -> bool:
    return rank.valid_tokens == 1 and rank.group is not None


def _in_lane(entries: list[_Entry], lane: float) -> list[_Entry]:
    if entries and entries[0][0] == entries[-1][0] == lane:
        return entries
    start = bisect_left(entries, lane, key=_lane)
    return entries[start : bisect_right(entries, lane, start, key=_lane)]
