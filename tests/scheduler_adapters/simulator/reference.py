"""The rules of an engine step, written as plainly as possible: it walks every request every step.

The fast engine must equal this one bit for bit; here each rule can be read in one place.

Between two steps: scores that are known by now are given to the requests that still wait. Other
requests get theirs when they lose their blocks and wait again. Arrivals due by now join; those
without a score have the median of the scores before them. Requests whose state changed are ranked
again, in order of arrival. A rank whose validity ended is replaced by its successor or a new one.

A step is filled by `Rank.lane`, ascending. Of equal ones the decodes are first, each taking a block
where its next token needs one; then the prefills in progress; then waiting requests, as long as
seats, KV blocks and the budget last. The first that does not fit ends admission for this step.

When a decode finds no block, another resident loses its blocks and waits again: the one with the
greatest (evict_key, receive number). It must rank after the decode and not be in the step yet. Its
prompt and output are computed anew. If there is none, the decode itself loses its blocks.

Under a rule that displaces, the best waiting request is admitted first wherever there are a seat
and blocks for it. Where blocks are missing, residents with a greater evict_key lose theirs, the
worst first, until there are enough. If that is impossible, or it finds no seat all the same, none
is evicted and admission ends. Where only a seat is missing, it waits.

Under a rule that offloads, what was computed is copied to the host instead. The blocks are free at
once, as the step needs them. When the request is up for admission and its copy has landed, it takes
a seat and its blocks and is copied back; when that has landed, it continues where it was. It has to
leave the blocks that the decodes need for their next token: they could not evict it, for a copy is
never interrupted. Copies land between two steps, before arrivals join.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, isnan, lcm

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InvalidDecision, SchedulingError
from scheduler_adapters.planner.step_budget import StepBudget, evict_order
from scheduler_adapters.policy import Policy, ask_rank, ask_rule
from scheduler_adapters.simulator.engine.arrivals import request_views
from scheduler_adapters.simulator.engine.memory import MAX_EVICTIONS_PER_REQUEST
from scheduler_adapters.simulator.engine.ranked_requests import MAX_SUCCESSORS
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.links import HostCopies
from scheduler_adapters.timeline.columns import TimelineRecord
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView, StepRule
from scheduler_adapters.workload.requests import Requests


@dataclass(slots=True)
class _Live:
    """A request inside the engine."""

    row: int
    view: RequestView
    output_tokens: int
    reasoning_tokens: int
    rank: Rank = field(default_factory=Rank)
    ask_at_tokens: float = inf
    """Generated tokens at which the rank ends."""
    blocks: int = 0
    prefill_left: int = 0
    """Tokens still to prefill; meaningful while resident."""
    to_prefill: int = 0
    """Tokens that were to prefill when it was admitted."""
    context: int = 0
    """Tokens the request consists of so far: prompt + generated."""
    evicted_s: float = -1.0
    host_blocks: int = 0
    """Blocks kept on the host; 0 unless it was offloaded."""
    is_moving: bool = False
    """True while they are copied: away where the request holds no blocks, else back."""
    late_score: float | None = None
    """A score that arrived while it ran, used when it waits again."""

    @property
    def is_resident(self) -> bool:
        return self.blocks > 0 and not self.is_moving

    @property
    def is_decoding(self) -> bool:
        return self.is_resident and self.prefill_left == 0

    @property
    def is_waiting(self) -> bool:
        return self.blocks == 0

    @property
    def next_context(self) -> int:
        """Tokens it has after the next one."""
        return self.context if self.host_blocks and not self.prefill_left else self.context + 1

    @property
    def decode_phase(self) -> Phase:
        thinks = self.view.generated_tokens < self.reasoning_tokens
        return Phase.REASONING if thinks else Phase.ANSWERING

    @property
    def order(self) -> tuple[tuple[float, ...], int]:
        return self.rank.key, self.view.number

    @property
    def evict_order(self) -> tuple[bool, tuple[float, ...], int]:
        return evict_order(self.rank, self.view.number)


@dataclass(slots=True)
class _Step:
    """The step in the making, and what may still be placed in it."""

    rule: StepRule
    budget: StepBudget
    decodes: list[_Live] = field(default_factory=list)
    prefills: list[tuple[_Live, int]] = field(default_factory=list)
    admission_closed: bool = False

    @property
    def members(self) -> set[int]:
        """Rows of the placed requests."""
        return {live.row for live in self.decodes} | {live.row for live, _ in self.prefills}


def newest_of(scores: list[float]) -> list[float]:
    """The newest 256 scores when their number last was 1, 2, 4, ..., 256, 512, 768, ..., sorted."""
    count = len(scores)
    taken = count // 256 * 256 or (2 ** (count.bit_length() - 1) if count else 0)
    return sorted(scores[max(0, taken - 256) : taken])


def median_of(scores: list[float]) -> float | None:
    """Their lower median; None without scores."""
    newest = newest_of(scores)
    return newest[(len(newest) - 1) // 2] if newest else None


class _Shares:
    """Shares of clients, by the rule: the classes near the least served one, of these the clients
    near the least served one, of these the request that is first in the policy's order.

    Service is counted anew from every request's own at each look: computed prompts and twice the
    generated tokens; while a request runs, at least twice its client's usual output so far. Near is
    less than half of what the running requests are charged.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        self.scale = {name: lcm(*weights.values()) // each for name, each in weights.items()}
        self.whole = lcm(1, *weights.values())
        self.live: dict[int, _Live] = {}
        self.least: dict[int, int] = {}
        """Row -> output tokens for which it is charged at least, once it was admitted."""
        self.cached: dict[int, int] = Counter()
        """Row -> prompt tokens found in a cache, known once the step of the admission is filled."""
        self.done: dict[tuple[str, ...], int] = Counter()
        """Service of finished requests, and what a name was lifted by."""
        self.number: dict[tuple[str, ...], int] = Counter()
        """Client -> its finished requests, and their tokens; old ones count by half."""
        self.tokens: dict[tuple[str, ...], int] = Counter()
        self.newest: dict[tuple[str, ...], tuple[str, ...]] = {}

    @staticmethod
    def names(live: "_Live") -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Its class, and its client."""
        return (live.view.user_class,), (live.view.user_class, live.view.client)

    def scale_of(self, name: tuple[str, ...]) -> int:
        return self.scale.get(name[0], self.whole) if len(name) == 1 else 1

    def charge(self, row: int) -> int:
        live, view = self.live[row], self.live[row].view
        if row not in self.least:
            return 0
        output = max(0 if live.is_waiting else self.least[row], view.generated_tokens)
        return view.prompt_tokens - self.cached[row] + 2 * output

    def served(self, name: tuple[str, ...]) -> int:
        own = [row for row, live in self.live.items() if name in self.names(live)]
        return self.done[name] + self.scale_of(name) * sum(map(self.charge, own))

    def near(self, name: tuple[str, ...]) -> int:
        running = [row for row, live in self.live.items() if not live.is_waiting]
        return sum(map(self.charge, running)) // 2 * self.scale_of(name)

    def waits(self, live: "_Live") -> None:
        """One that arrives, or has lost its blocks."""
        waiting = {
            name
            for row, one in self.live.items()
            if one.is_waiting and row != live.row
            for name in self.names(one)
        }
        client = self.names(live)[1]
        if live.row not in self.live and self.number[client] > 16:
            self.number[client] //= 2
            self.tokens[client] //= 2
        self.live[live.row] = live
        for name in self.names(live):
            beside = [each for each in waiting if each[:-1] == name[:-1]]
            newest = self.newest.get(name[:-1])
            least = min(map(self.served, beside or ([newest] if newest else [])), default=0)
            if name not in self.done:
                self.done[name] = least
            elif name not in waiting:
                self.done[name] += max(0, least - self.near(name) - self.served(name))

    def starts(self, live: "_Live") -> None:
        (least, most), client = live.view.limits, self.names(live)[1]
        usual = self.tokens[client] // max(1, self.number[client])
        self.least[live.row] = int(max(min(max(usual, least), most), live.view.generated_tokens))
        for name in self.names(live):
            self.newest[name[:-1]] = name

    def leaves(self, live: "_Live") -> None:
        self.least[live.row] = 0
        for name in self.names(live):
            self.done[name] += self.scale_of(name) * self.charge(live.row)
        self.number[self.names(live)[1]] += 1
        self.tokens[self.names(live)[1]] += live.view.generated_tokens
        del self.live[live.row], self.least[live.row]

    def next(self, waiting: list["_Live"]) -> "_Live":
        """Return the next of these waiting requests of equal `Rank.lane`, in order."""
        for level in (0, 1):
            name_of = {live.row: self.names(live)[level] for live in waiting}
            served = {name: self.served(name) for name in set(name_of.values())}
            least = {}
            for name in served:
                same = [served[other] for other in served if other[:-1] == name[:-1]]
                least[name] = min(same)
            near = {name for name in served if served[name] - least[name] < max(1, self.near(name))}
            waiting = [live for live in waiting if name_of[live.row] in near]
        return waiting[0]


class ReferenceEngine:
    """Runs requests under a policy on one instance; one object per run."""

    def __init__(self, policy: Policy, instance: Instance) -> None:
        self.policy = policy
        self.instance = instance
        self.load = LoadView(total_blocks=instance.kv_blocks)
        self.live: list[_Live] = []
        self.evictions_without_token = 0
        self.scores: list[float] = []
        """Scores so far, in order of arrival."""
        self.late: list[tuple[float, int, float]] = []
        """Scores that arrive later than their requests: time, row, score."""
        instance.check(policy)
        weights = policy.traits.shares
        self.shares = None if weights is None else _Shares(weights)
        self.copies: HostCopies | None = None
        self.copying: dict[int, _Live] = {}
        if instance.host is not None:
            self.copies = HostCopies(instance.host, block_tokens=instance.block_tokens)

    def run(self, requests: Requests) -> Timeline:
        """Run until all requests are finished."""
        record = TimelineRecord()
        record.add_rows(len(requests))
        rejected = self.instance.cannot_hold(requests.prompt_tokens, requests.output_tokens)
        is_late = (requests.score_delay_s > 0) & ~np.isnan(requests.score)
        known_s = requests.arrival_s + requests.score_delay_s
        for row in np.flatnonzero(is_late & ~rejected & np.isfinite(known_s)):
            self.late.append((float(known_s[row]), int(row), float(requests.score[row])))
        requests = requests.with_scores(np.where(is_late, np.nan, requests.score))
        arrivals = iter(self._views(requests, rejected))
        coming = next(arrivals, None)
        while coming is not None or self.live:
            if not self.live and coming is not None:
                self.load.now_s = max(self.load.now_s, coming.view.arrival_s)
            self._land()
            known = self._late_scores()
            fresh = []
            while coming is not None and coming.view.arrival_s <= self.load.now_s:
                fresh.append(coming)
                coming = next(arrivals, None)
            self.live += fresh
            self._count()
            self.load.num_waiting -= len(fresh)
            for live in fresh:
                self.load.num_waiting += 1
                live.view.cached_tokens = self._hits(live)
                live.view.score = known.get(live.row, live.view.score)
                if live.view.score is None:
                    live.view.median_score = median_of(self.scores)
                else:
                    self.scores.append(live.view.score)
                if self.shares is not None:
                    self.shares.waits(live)
                self._ask(live)
            self._expire()
            evictions = self.evictions_without_token
            step = self._fill()
            if step.members:
                self._run_step(record, step)
            elif self.evictions_without_token == evictions:
                # Everybody is being copied, or waits for that.
                assert self.copies is not None
                next_s = inf if coming is None else coming.view.arrival_s
                score_s = min(self.late)[0] if self.late else inf
                self.load.now_s = min(next_s, score_s, self.copies.next_landing_s)
        return record.timeline(requests, rejected)

    def _land(self) -> None:
        """Requests whose copies have landed: on the host, or back and running again."""
        numbers = self.copies.land(self.load.now_s) if self.copies is not None else []
        landed = [self.copying.pop(number) for number in numbers]
        back = [live for live in landed if live.blocks]
        for live in landed:
            live.is_moving = False
        for live in back:
            live.host_blocks = 0
            live.view.phase = Phase.PREFILL if live.prefill_left else live.decode_phase
        self._count()
        for live in back:
            self._ask(live)

    def _late_scores(self) -> dict[int, float]:
        """Give the waiting requests the scores that are known by now; return those of others."""
        known = sorted(late for late in self.late if late[0] <= self.load.now_s)
        self.late = [late for late in self.late if late[0] > self.load.now_s]
        live_at = {live.row: live for live in self.live}
        for _, row, score in known:
            if row in live_at:
                live_at[row].late_score = score
                if live_at[row].is_waiting:
                    self._take_late(live_at[row])
                    self._ask(live_at[row])
        return {row: score for _, row, score in known if row not in live_at}

    def _take_late(self, live: _Live) -> None:
        if live.late_score is not None:
            live.view.score = live.late_score
            self.scores.append(live.late_score)
            live.late_score = None

    def _views(self, requests: Requests, rejected: NDArray[np.bool_]) -> Iterable[_Live]:
        """The requests that fit into this instance at all."""
        lengths = zip(requests.output_tokens, requests.reasoning_tokens, strict=True)
        for view, (output, reasoning) in zip(request_views(requests), lengths, strict=True):
            if not rejected[view.number]:
                own = int(output), int(reasoning)
                yield _Live(view.number, view, *own, context=view.prompt_tokens)

    def _ask(self, live: _Live) -> None:
        if live.view.previous is not None and live.view.previous.sticky:
            return
        self._take(live, ask_rank(self.policy, live.view, self.load))

    def _take(self, live: _Live, rank: Rank) -> None:
        live.rank = live.view.previous = rank
        live.ask_at_tokens = live.view.generated_tokens + rank.valid_tokens

    def _expire(self) -> None:
        """Replace the ranks that ended; each may be replaced by one that ended as well."""
        for live in self.live:
            for _ in range(MAX_SUCCESSORS):
                rank = live.rank
                if rank.valid_until_s > self.load.now_s or (rank.sticky and rank.then is None):
                    break
                if live.rank.then is not None:
                    self._take(live, live.rank.then)
                else:
                    self._ask(live)
            else:
                raise InvalidDecision(
                    f"policy {self.policy.name!r} keeps answering with ranks that have ended "
                    f"(valid_until_s {live.rank.valid_until_s} at {self.load.now_s} s); "
                    "return a later time, or none"
                )

    def _end_by_starts(self) -> bool:
        """Replace the ranks that end with the admissions so far; False if there is none."""
        ended = [
            live
            for live in self.live
            if live.is_waiting and live.rank.valid_until_started <= self.load.num_started
        ]
        for live in ended:
            assert live.rank.then is not None
            self._take(live, live.rank.then)
        return bool(ended)

    def _count(self) -> None:
        self.load.num_waiting = sum(not live.is_resident for live in self.live)
        self.load.num_decoding = sum(live.is_decoding for live in self.live)
        self.load.num_prefilling = len(self.live) - self.load.num_waiting - self.load.num_decoding

    def _fill(self) -> _Step:
        """Fill the step by the rule of the policy; by none where the rule would place nothing."""
        rule = ask_rule(self.policy, self.load)
        step = self._fill_by(rule)
        if not step.members:
            # A real engine must not stall because of a rule: work that can run does.
            step = self._fill_by(StepRule(offload=rule.offload))
        return step

    def _fill_by(self, rule: StepRule) -> _Step:
        instance = self.instance
        budget = StepBudget(
            rule,
            max_tokens=instance.max_tokens,
            max_num_seqs=instance.max_num_seqs,
            exceeds_budget=True,
        )
        step = _Step(rule, budget)
        if rule.displace:
            self._displace(step)
        done = -inf
        # An evicted request may change its lane, so the lanes are looked up anew each time.
        while lanes := [live.rank.lane for live in self.live if live.rank.lane > done]:
            done = min(lanes)
            self._place_decodes(step, done)
            self._place_prefills(step, done)
            if not rule.displace:
                self._admit(step, done)
        return step

    def _in_lane(self, lane: float, which: Callable[[_Live], bool]) -> list[_Live]:
        members = [live for live in self.live if live.rank.lane == lane and which(live)]
        return sorted(members, key=lambda live: live.order)

    def _place_decodes(self, step: _Step, lane: float) -> None:
        for live in self._in_lane(lane, lambda live: live.is_decoding):
            if not live.is_decoding:  # evicted meanwhile
                continue
            if not step.budget.takes_decodes():
                break
            if self._secure_block(step, live):
                step.decodes.append(live)
                step.budget.place_decodes(1)

    def _place_prefills(self, step: _Step, lane: float) -> None:
        for live in self._in_lane(lane, lambda live: live.is_resident and not live.is_decoding):
            if not self._prefill(step, live):
                break

    def _prefill(self, step: _Step, live: _Live) -> bool:
        chunk = step.budget.place_prefill(live.prefill_left)
        if chunk:
            step.prefills.append((live, chunk))
        return chunk > 0

    def _admit(self, step: _Step, lane: float) -> None:
        if step.admission_closed:
            return
        while waiting := self._in_lane(lane, lambda live: live.is_waiting):
            if self._end_by_starts():
                continue
            live = waiting[0] if self.shares is None else self.shares.next(waiting)
            if not self._fits(step, live):
                step.admission_closed = True
                break
            self._admit_one(step, live)
            if not live.is_moving:
                self._prefill(step, live)

    def _fits(self, step: _Step, live: _Live) -> bool:
        tokens, blocks = self._need(live)
        free_after = self._free_blocks() - blocks
        if live.host_blocks:
            placed = step.members
            free_after -= sum(
                self._growth(other)
                for other in self.live
                if other.is_decoding and other.row not in placed
            )
            reserve = max(self.instance.watermark_blocks, self.instance.decode_headroom_blocks)
            return not live.is_moving and self._has_seat(step) and free_after >= reserve
        return (
            self._has_seat(step)
            and free_after >= self.instance.watermark_blocks
            and step.budget.chunk(tokens) > 0
        )

    def _has_seat(self, step: _Step) -> bool:
        return step.budget.admits(sum(not live.is_waiting for live in self.live))

    def _admit_one(self, step: _Step, live: _Live) -> None:
        """Give a request its seat and its blocks, to be computed or copied back."""
        if self.shares is not None:
            self.shares.starts(live)
        if live.host_blocks:
            assert self.copies is not None
            is_whole = live.prefill_left == 0
            live.blocks = live.host_blocks if is_whole else self.instance.blocks(live.context)
            live.is_moving = True
            self._take_blocks(live, live.blocks)
            self.copying[self.copies.start(self.load.now_s, live.host_blocks)] = live
        else:
            live.blocks = self.instance.blocks(live.context)
            live.to_prefill, blocks = self._need(live)
            live.prefill_left = live.to_prefill
            self._take_blocks(live, blocks)
            live.view.phase = Phase.PREFILL
        self.load.num_started += 1
        live.view.admission_number = self.load.num_started
        step.budget.num_admissions += 1

    # The next six count the blocks; `prefix_cache.py` has them for blocks that requests share.

    def _free_blocks(self) -> int:
        return self.instance.kv_blocks - self.load.used_blocks

    def _need(self, live: _Live, more: int = 0) -> tuple[int, int]:
        """Tokens that a waiting request computes and blocks it takes, for `more` tokens beyond."""
        tokens = live.context - live.view.cached_tokens
        return tokens, self.instance.blocks(live.context + more)

    def _hits(self, live: _Live) -> int:
        """Prompt tokens of an arriving request that are cached."""
        return live.view.cached_tokens

    def _take_blocks(self, live: _Live, blocks: int) -> None:
        self.load.used_blocks += blocks

    def _give_back(self, live: _Live) -> None:
        self.load.used_blocks -= live.blocks

    def _freed(self, victims: list[_Live], best: _Live) -> int:
        return sum(victim.blocks for victim in victims)

    def _growth(self, live: _Live) -> int:
        """Blocks that the next token of a decode needs on top of what the request holds."""
        return self.instance.blocks(live.context) - live.blocks

    def _secure_block(self, step: _Step, live: _Live) -> bool:
        """Take the block for the next token of a decode, by eviction where need be."""
        needed = self._growth(live)
        while self._free_blocks() < max(needed, self.instance.decode_headroom_blocks):
            placed = step.members
            victims = [
                other
                for other in self.live
                if other.is_resident
                and other.row not in placed
                and other.rank.evict_key is not None
                and other.evict_order > live.evict_order
            ]
            victim = max(victims, key=lambda other: other.evict_order, default=live)
            self._evict(step, victim)
            if victim is live:
                return False
        live.blocks += needed
        self._take_blocks(live, needed)
        return True

    def _displace(self, step: _Step) -> None:
        """Admit the best waiting requests, evicting worse residents if that makes enough room."""
        while waiting := [live for live in self.live if live.is_waiting]:
            if self._end_by_starts():
                continue
            best = min(waiting, key=lambda live: (live.rank.lane, live.order))
            if self.shares is not None:
                lane = self._in_lane(best.rank.lane, lambda live: live.is_waiting)
                best = self.shares.next(lane)
            if best.is_moving or best.evicted_s == self.load.now_s:
                return
            if not self._make_room(step, best):
                return
            self._admit_one(step, best)

    def _make_room(self, step: _Step, best: _Live) -> bool:
        """Evict the fewest worst residents that let `best` in; none where that is impossible."""
        if step.budget.num_admissions >= step.budget.max_admissions:
            return False
        residents = [live for live in self.live if live.is_resident]
        growth = sum(self._growth(live) for live in residents if live.is_decoding)
        free = self._free_blocks() - growth - self._need(best, best.next_context - best.context)[1]
        if best.host_blocks:
            free -= self.instance.decode_headroom_blocks
        free_seats = step.budget.seats - sum(not live.is_waiting for live in self.live) - 1
        worse = [
            live
            for live in residents
            if live.rank.evict_key is not None
            and best.rank.evict_key is not None
            and live.rank.evict_key > best.rank.evict_key
        ]
        room, victims = free, list[_Live]()
        for victim in sorted(worse, key=lambda live: live.evict_order, reverse=True):
            if room >= 0:
                break
            victims.append(victim)
            growth = sum(self._growth(victim) for victim in victims if victim.is_decoding)
            room = free + growth + self._freed(victims, best)
            free_seats += 1
        if room < 0 or free_seats < 0:
            return False
        for victim in victims:
            self._evict(step, victim)
        return True

    def _evict(self, step: _Step, live: _Live) -> None:
        if step.rule.offload and self.instance.host is not None:
            self._offload(live)
        self._give_back(live)
        live.blocks = 0
        live.evicted_s = self.load.now_s
        live.view.phase = Phase.WAITING
        live.view.preemptions += 1
        self.evictions_without_token += 1
        if self.evictions_without_token > MAX_EVICTIONS_PER_REQUEST * len(self.live):
            raise SchedulingError(
                f"policy {self.policy.name!r} evicts without end at {self.load.now_s} s, last "
                f"request {live.view.request_id!r}; let a request run before it can be evicted"
            )
        if self.shares is not None:
            self.shares.waits(live)
        self._take_late(live)
        self._ask(live)

    def _offload(self, live: _Live) -> None:
        """Copy what a victim has computed to the host."""
        assert self.instance.host is not None
        assert self.copies is not None
        is_whole = live.prefill_left == 0
        done = self.instance.blocks(live.context - live.prefill_left)
        blocks = live.blocks if is_whole else done
        if blocks:
            live.host_blocks, live.is_moving = blocks, True
            self.copying[self.copies.start(self.load.now_s, blocks)] = live

    def _run_step(self, record: TimelineRecord, step: _Step) -> None:
        duration_s = self.instance.latency.step_s(
            len(step.decodes),
            sum(live.context for live in step.decodes),
            [(live.context - live.prefill_left, chunk) for live, chunk in step.prefills],
        )
        if not duration_s > 0:
            raise SchedulingError(f"a step took {duration_s} s; latency must be above 0")
        for live, _ in step.prefills if self.shares else ():
            if not live.view.preemptions:
                self.shares.cached[live.row] = live.context - live.to_prefill
        for live in [*step.decodes, *(live for live, _ in step.prefills)]:
            if isnan(record.scheduled_s[live.row]):
                record.scheduled_s[live.row] = self.load.now_s
        load = self.load
        record.start_s[len(record.tick_s)] = load.now_s
        load.now_s = load.last_step_end_s = load.now_s + duration_s
        load.step += 1
        load.mean_step_s += (duration_s - load.mean_step_s) / load.step
        record.tick_s.append(load.now_s)
        self._book(record, step)

    def _book(self, record: TimelineRecord, step: _Step) -> None:
        """Count the step's tokens, remove the finished requests, then rank the changed ones."""
        changed = []
        for live, chunk in step.prefills:
            live.prefill_left -= chunk
            if live.prefill_left == 0:
                self._emit(record, live)
                changed.append(live)
            elif live.prefill_left == live.to_prefill - chunk:
                changed.append(live)
        for live in step.decodes:
            before = live.view.phase
            self._emit(record, live)
            if live.view.phase != before or live.view.generated_tokens >= live.ask_at_tokens:
                changed.append(live)
        self.live = [live for live in self.live if live.view.generated_tokens < live.output_tokens]
        self._count()
        for live in sorted(changed, key=lambda live: live.row):
            if live.view.generated_tokens < live.output_tokens:
                self._ask(live)

    def _emit(self, record: TimelineRecord, live: _Live) -> None:
        """One output token at the end of the step that just ended."""
        self.evictions_without_token = 0
        view, tick = live.view, len(record.tick_s) - 1
        view.generated_tokens += 1
        view.thinking_tokens = min(view.generated_tokens, live.reasoning_tokens)
        view.phase = live.decode_phase
        view.last_token_s = self.load.now_s
        live.context += 1
        record.add_runs(live.row, (tick, tick))
        if view.generated_tokens == 1:
            record.first_token_s[live.row] = self.load.now_s
        if view.generated_tokens == live.output_tokens:
            record.finished_s[live.row] = self.load.now_s
            record.preemptions[live.row] = view.preemptions
            if self.shares is not None:
                self.shares.leaves(live)
            self._give_back(live)
            live.blocks = 0
