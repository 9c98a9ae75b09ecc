"""The fast engine: the rules of `reference.py`, bit for bit, at O(1) work per step.

Decodes that advance together form a cohort (`cohort.py`), so a step costs the same for two of them
and for two hundred. While nobody is prefilled and nothing happens to anybody, steps are repeated
without filling them anew.
"""

from __future__ import annotations

import gc
from bisect import bisect_right, insort
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from math import inf

from scheduler_adapters.experiments.timeline import Timeline
from scheduler_adapters.experiments.workload import Requests
from scheduler_adapters.policy import Policy, ask_rank
from scheduler_adapters.simulator.cohort import Cohort, Lane, Live
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.record import Record
from scheduler_adapters.views import UNLIMITED, LoadView, Rank, RequestView, StepRule
from scoring_service.errors import InvalidDecision, SchedulingError

MAX_SUCCESSORS = 100
"""Ranks that one request may go through at one moment."""
MAX_EVICTIONS_PER_REQUEST = 10
"""Without any token in between; more is a loop."""


class Engine:
    """Runs requests under a policy on one instance; one object per run."""

    def __init__(self, policy: Policy, instance: Instance, *, skip_ahead: bool = True) -> None:
        self.policy = policy
        self.instance = instance
        self.skip_ahead = skip_ahead
        self.has_rule = type(policy).step_rule is not Policy.step_rule
        self.pending_rule: StepRule | None = None
        self.total_blocks = instance.kv_blocks
        self.used_blocks = 0
        self.watermark_blocks = instance.watermark_blocks
        self.headroom = instance.decode_headroom_blocks
        self.block_tokens = instance.block_tokens
        self.load = LoadView(total_blocks=instance.kv_blocks)
        self.lanes: dict[int, Lane] = {}
        self.lane_order: list[int] = []
        self.timers: list[tuple[float, int, Live | Cohort, int]] = []
        self.num_timers = 0
        self.residents: dict[int, Live] = {}
        self.num_waiting = self.num_prefilling = 0
        self.evictions_without_token = 0
        self.split_lanes: list[Lane] = []
        self.arrivals: list[Live] = []
        self.next_arrival_s = inf
        self._take_rule(UNLIMITED)

    def run(self, requests: Requests) -> Timeline:
        """Run until all requests are finished.

        Raises:
            InvalidDecision: the policy raised, or ranked with NaN.
            SchedulingError: requests evict each other for ever.
        """
        self.record = Record(requests, self.instance)
        self.num_rows = len(requests)
        self.lives = _lives(requests, self.record)
        rejected = self.record.rejected.tolist()
        self.arrivals = [live for live in reversed(self.lives) if not rejected[live.row]]
        self._look_at_arrivals()
        with _uncollected():
            while self.arrivals or self.num_waiting or self.residents:
                self._boundary()
                self._fill()
                if self.placed or self.chunks:
                    self._run_step()
                else:
                    self._count_stall()
        return self.record.timeline()

    def _count_stall(self) -> None:
        """A step that everybody was evicted from may stay empty, but not again and again."""
        self.evictions_without_token += 1
        self._refuse_endless_eviction("none")

    # Between two steps

    def _boundary(self) -> None:
        load = self.load
        if not self.num_waiting and not self.residents:
            load.now_s = max(load.now_s, self.next_arrival_s)
        if self.next_arrival_s <= load.now_s:
            self._deliver()
        else:
            self._count()
        if self.timers and self.timers[0][0] <= load.now_s:
            self._expire()

    def _deliver(self) -> None:
        """Arrivals join the queue, all of them before the first is ranked."""
        fresh = []
        while self.next_arrival_s <= self.load.now_s:
            fresh.append(self.arrivals.pop())
            self._look_at_arrivals()
        self.num_waiting += len(fresh)
        self._count()
        for live in fresh:
            self._ask(live)
            self._enqueue(live)

    def _look_at_arrivals(self) -> None:
        self.next_arrival_s = self.arrivals[-1].view.arrival_s if self.arrivals else inf

    def _count(self) -> None:
        load = self.load
        load.num_waiting = self.num_waiting
        load.num_prefilling = self.num_prefilling
        load.num_decoding = len(self.residents) - self.num_prefilling

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
            self._set_timer(rank.valid_until_s, live)

    def _set_timer(self, time_s: float, ranked: Live | Cohort) -> None:
        self.num_timers += 1
        heappush(self.timers, (time_s, self.num_timers, ranked, ranked.version))

    def _expire(self) -> None:
        """Replace the ranks that ended; each may be replaced by one that ended as well."""
        timers, now_s = self.timers, self.load.now_s
        left = MAX_SUCCESSORS * (len(timers) + 1)
        while timers and timers[0][0] <= now_s:
            _, _, ranked, version = heappop(timers)
            if ranked.version != version:
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
            self._rank_cohort(cohort, self._ask_cohort(cohort))

    def _unplace(self, live: Live) -> None:
        """Take a request out of its lane, before its rank changes."""
        assert live.rank is not None
        if live.cohort is not None:
            live.cohort.leave(live, self.record)
        elif live.in_prefills:
            self.lanes[live.rank.lane].prefills.remove((live.rank.key, live.row))
            live.in_prefills = False

    def _place(self, live: Live) -> None:
        """Put a request into the lane of its rank."""
        if live.is_waiting:
            self._enqueue(live)
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
        lane = self.lanes.get(number)
        if lane is None:
            lane = self.lanes[number] = Lane(number)
            insort(self.lane_order, number)
        return lane

    # Cohorts

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
            if rank.valid_until_s < inf:
                self._set_timer(rank.valid_until_s, cohort)
        return cohort

    def _ask_cohort(self, cohort: Cohort) -> Rank:
        """A new rank for all members, asked for one of them."""
        assert cohort.rank is not None
        if cohort.rank.sticky:
            return cohort.rank
        live = next(iter(cohort.members.values()))
        live.rank = cohort.rank
        self.load.used_blocks = self.used_blocks
        return ask_rank(self.policy, live.sync_view(), self.load)

    def _rank_cohort(self, cohort: Cohort, rank: Rank) -> None:
        """Give all members a new rank, and the cohort the place that goes with it."""
        if rank.group is None:
            for live in list(cohort.members.values()):
                cohort.leave(live, self.record)
                self._take(live, rank)
                self._join(live)
            return
        cohort.rank = rank
        cohort.version += 1
        cohort.ask_at = cohort.counter + rank.valid_tokens
        if cohort.lane.number != rank.lane:
            cohort.move(self._lane(rank.lane))
        if rank.valid_until_s < inf:
            self._set_timer(rank.valid_until_s, cohort)

    def _rank_groups(self, stale: list[Cohort]) -> None:
        """Rank cohorts whose rank ended with this step; those of one group become one."""
        first_of: dict[object, Cohort] = {}
        for cohort in stale:
            assert cohort.rank is not None
            group = cohort.rank.group
            first = first_of.setdefault(group, cohort)
            if first is not cohort:
                first_of[group] = self._merge(first, cohort)
        for cohort in first_of.values():
            self._rank_cohort(cohort, self._ask_cohort(cohort))

    def _merge(self, one: Cohort, other: Cohort) -> Cohort:
        """One cohort of two; the smaller one's members move."""
        large, small = (one, other) if one.count >= other.count else (other, one)
        for live in list(small.members.values()):
            small.leave(live, self.record)
            large.join(live)
        return large

    # Filling a step

    def _fill(self) -> None:
        rule, self.pending_rule = self.pending_rule, None
        if rule is None:
            rule = UNLIMITED
            if self.has_rule:
                self.load.used_blocks = self.used_blocks
                rule = self.policy.step_rule(self.load)
        self._fill_by(rule)
        if not (self.placed or self.chunks):
            # A real engine must not stall because of a rule: work that can run does.
            self._fill_by(UNLIMITED)

    def _take_rule(self, rule: StepRule) -> None:
        """Keep the rule's limits as numbers, joined with the engine's own."""
        instance = self.instance
        self.rule = rule
        self.step_budget = min(_limit(rule.max_tokens), _limit(instance.max_tokens))
        self.max_decodes = _limit(rule.max_decodes)
        self.max_prefills = _limit(rule.max_prefills)
        self.max_admissions = _limit(rule.max_admissions)
        self.chunk_limit = _limit(rule.chunk)
        self.seats = min(instance.max_num_seqs, _limit(rule.max_resident))
        self.mixed = rule.mixed

    def _fill_by(self, rule: StepRule) -> None:
        if rule is not self.rule:
            self._take_rule(rule)
        self.budget = self.step_budget
        self.placed: list[Cohort] = []
        self.chunks: list[tuple[Live, int]] = []
        self.num_placed = 0
        self.admissions = 0
        self.admission_closed = False
        self.is_steady = True
        if rule.displace and self.num_waiting:
            self._displace()
        order, i = self.lane_order, 0
        while i < len(order):
            lane = self.lanes[order[i]]
            if lane.count and self._takes_decodes():
                self._place_decodes(lane)
            for _, row in lane.prefills:
                if not self._prefill(self.lives[row]):
                    break
            if lane.waiting and not self.admission_closed and not rule.displace:
                self._admit(lane)
            # An eviction may have opened a lane.
            i = bisect_right(order, lane.number)

    def _takes_decodes(self) -> bool:
        return (
            self.budget >= 1
            and self.num_placed < self.max_decodes
            and (self.mixed or not self.chunks)
        )

    def _place_decodes(self, lane: Lane) -> None:
        """All decodes of the lane, where budget, cap and blocks allow; else one by one."""
        count = lane.count
        if count <= self.budget and self.num_placed + count <= self.max_decodes:
            growth = 0
            for cohort in lane.cohorts:
                growth += cohort.growth[cohort.counter % self.block_tokens]
            if self.used_blocks + growth + self.headroom <= self.total_blocks:
                self.used_blocks += growth
                self.placed += lane.cohorts
                self.num_placed += count
                self.budget -= count
                return
        self._walk_decodes(lane)

    def _walk_decodes(self, lane: Lane) -> None:
        self.is_steady = False
        step, placed = self.load.step, []
        for live in sorted(lane.decodes(), key=_order):
            if live.cohort is None:  # evicted meanwhile
                continue
            if not self._takes_decodes():
                break
            if self._secure_block(live):
                live.placed_step = step
                placed.append(live)
                self.num_placed += 1
                self.budget -= 1
        self._place_members(lane, placed)

    def _place_members(self, lane: Lane, placed: list[Live]) -> None:
        """Place the cohorts of these decodes, each first split from members that are not placed."""
        members: dict[int, list[Live]] = {}
        for live in placed:
            members.setdefault(id(live.cohort), []).append(live)
        for cohort in list(lane.cohorts):
            chosen = members.get(id(cohort), [])
            if chosen and len(chosen) < cohort.count:
                self.split_lanes.append(lane)
                cohort = self._split(cohort, chosen)
            if chosen:
                self.placed.append(cohort)

    def _rejoin(self, lane: Lane) -> None:
        """Make cohorts one again that were split and are still ranked alike."""
        alike: dict[tuple[int, float], Cohort] = {}
        for cohort in list(lane.cohorts):
            what = id(cohort.rank), cohort.ask_at - cohort.counter
            first = alike.setdefault(what, cohort)
            if first is not cohort:
                alike[what] = self._merge(first, cohort)

    def _split(self, cohort: Cohort, chosen: list[Live]) -> Cohort:
        part = Cohort(cohort.lane, cohort.rank, self.block_tokens, self.num_rows)
        part.counter = cohort.counter
        part.ask_at = cohort.ask_at
        if cohort.rank is not None and cohort.rank.valid_until_s < inf:
            self._set_timer(cohort.rank.valid_until_s, part)
        for live in chosen:
            cohort.leave(live, self.record)
            part.join(live)
        return part

    def _prefill(self, live: Live) -> bool:
        """Place a chunk of a resident's prefill; False where the step takes none."""
        chunk = self._chunk(live.prefill_left)
        if chunk:
            self.budget -= self._cost(chunk) if self.rule.padded_tokens else chunk
            self.chunks.append((live, chunk))
        return chunk > 0

    def _chunk(self, tokens: int) -> int:
        """How many of `tokens` a further prefill may do in this step; 0 for none."""
        if self.num_placed and not self.mixed:
            return 0
        if len(self.chunks) >= self.max_prefills:
            return 0
        if self.rule.whole_prompts:
            return tokens if not self.chunks or self._cost(tokens) <= self.budget else 0
        limit = self.chunk_limit if self.chunk_limit < self.budget else self.budget
        # Not min() and max(): this is asked several times a step. An infinite limit is no int.
        return tokens if tokens <= limit else int(limit) if limit > 0 else 0

    def _cost(self, tokens: int) -> int:
        """What a prefill of `tokens` takes from the budget."""
        if not self.rule.padded_tokens:
            return tokens
        chunks = [chunk for _, chunk in self.chunks]
        return (len(chunks) + 1) * max([tokens, *chunks]) - len(chunks) * max([0, *chunks])

    def _admit(self, lane: Lane) -> None:
        waiting, lives = lane.waiting, self.lives
        while waiting:
            _, row, version = waiting[0]
            live = lives[row]
            if live.version != version or not live.is_waiting:
                heappop(waiting)
            elif self._fits(live):
                heappop(waiting)
                self._make_resident(live)
                self._prefill(live)
            else:
                self.admission_closed = True
                return

    def _fits(self, live: Live) -> bool:
        blocks = -(-live.context // self.block_tokens)
        return (
            len(self.residents) < self.seats
            and self.admissions < self.max_admissions
            and self.used_blocks + blocks + self.watermark_blocks <= self.total_blocks
            and self._chunk(live.context) > 0
        )

    def _make_resident(self, live: Live) -> None:
        self.is_steady = False  # the next step may admit more, whatever stopped this one
        self.used_blocks += -(-live.context // self.block_tokens)
        live.is_waiting = False
        live.prefill_left = live.context
        self.residents[live.row] = live
        self.num_waiting -= 1
        self.num_prefilling += 1
        self.admissions += 1
        self.load.num_started += 1
        live.view.admission_number = self.load.num_started

    # KV shortage

    def _blocks_of(self, live: Live) -> int:
        """Blocks a resident that is not in the step yet holds."""
        context = live.now_context - (live.cohort is not None)
        return -(-context // self.block_tokens)

    def _growth_of(self, live: Live) -> int:
        """Blocks that the next token of a resident needs: 1 or 0."""
        return int(live.cohort is not None and (live.now_context - 1) % self.block_tokens == 0)

    def _is_placed(self, live: Live) -> bool:
        return live.placed_step == self.load.step or (
            live.cohort in self.placed if live.cohort is not None else self._has_chunk(live)
        )

    def _has_chunk(self, live: Live) -> bool:
        return any(other is live for other, _ in self.chunks)

    def _secure_block(self, live: Live) -> bool:
        """Take the block for the next token of a decode, by eviction where need be."""
        needed = self._growth_of(live)
        while self.total_blocks - self.used_blocks < max(needed, self.headroom):
            order = _evict_order(live)
            victims = [
                other
                for other in self.residents.values()
                if _evict_order(other)[0]
                and _evict_order(other) > order
                and not self._is_placed(other)
            ]
            victim = max(victims, key=_evict_order, default=live)
            self._evict(victim)
            if victim is live:
                return False
        self.used_blocks += needed
        return True

    def _evict(self, live: Live) -> None:
        self.is_steady = False
        self.used_blocks -= self._blocks_of(live)
        if live.cohort is None:
            self.num_prefilling -= 1
        self._unplace(live)
        live.is_waiting = True
        live.evicted_step = self.load.step
        live.view.preemptions += 1
        self.record.preemptions[live.row] += 1
        del self.residents[live.row]
        self.num_waiting += 1
        self.evictions_without_token += 1
        self._refuse_endless_eviction(live.view.request_id)
        self._ask(live)
        self._enqueue(live)

    def _refuse_endless_eviction(self, request_id: str) -> None:
        num_live = len(self.residents) + self.num_waiting
        if self.evictions_without_token > MAX_EVICTIONS_PER_REQUEST * num_live:
            raise SchedulingError(
                f"policy {self.policy.name!r} evicts without end at {self.load.now_s} s, last "
                f"request {request_id!r}; let a request run before it can be evicted"
            )

    def _displace(self) -> None:
        """Admit the best waiting requests, evicting worse residents if that makes enough room."""
        while (best := self._best_waiting()) is not None:
            if best.evicted_step == self.load.step or not self._make_room(best):
                return
            self._make_resident(best)
            self._place(best)

    def _best_waiting(self) -> Live | None:
        for number in self.lane_order:
            waiting = self.lanes[number].waiting
            while waiting:
                _, row, version = waiting[0]
                live = self.lives[row]
                if live.version == version and live.is_waiting:
                    return live
                heappop(waiting)
        return None

    def _make_room(self, best: Live) -> bool:
        """Evict the fewest worst residents that let `best` in; none where that is impossible."""
        if self.admissions >= self.max_admissions:
            return False
        growth = sum(cohort.grows() for lane in self.lanes.values() for cohort in lane.cohorts)
        needed = -(-(best.context + 1) // self.block_tokens)
        room = self.total_blocks - self.used_blocks - growth - needed
        free_seats = self.seats - len(self.residents) - 1
        victims: list[Live] = []
        if room < 0 or free_seats < 0:
            for victim in self._worse_than(best):
                victims.append(victim)
                room += self._blocks_of(victim) + self._growth_of(victim)
                free_seats += 1
                if room >= 0 and free_seats >= 0:
                    break
            else:
                return False
        for victim in victims:
            self._evict(victim)
        return True

    def _worse_than(self, best: Live) -> list[Live]:
        """Residents that `best` may displace, worst first."""
        assert best.rank is not None
        key = best.rank.evict_key
        if key is None:
            return []
        worse = []
        for live in self.residents.values():
            evict_key = _rank_of(live).evict_key
            if evict_key is not None and evict_key > key:
                worse.append(live)
        return sorted(worse, key=_evict_order, reverse=True)

    # Running a step

    def _run_step(self) -> None:
        load, record = self.load, self.record
        start_s = load.now_s
        prefills = []
        for live, chunk in self.chunks:
            processed = live.context - live.prefill_left
            prefills.append((processed, chunk))
            if record.scheduled_s[live.row] != record.scheduled_s[live.row]:
                record.scheduled_s[live.row] = start_s
        context = 0
        for cohort in self.placed:
            context += cohort.context
        duration_s = self.instance.latency.step_s(self.num_placed, context, prefills)
        if not duration_s > 0:
            raise SchedulingError(f"a step took {duration_s} s; latency must be above 0")
        self._pass(duration_s)
        self._book()

    def _pass(self, duration_s: float) -> None:
        """Let the time of one step pass."""
        load = self.load
        load.now_s = load.last_step_end_s = load.now_s + duration_s
        load.step += 1
        load.mean_step_s += (duration_s - load.mean_step_s) / load.step
        self.record.tick_s.append(load.now_s)

    def _book(self) -> None:
        """Count the step's tokens, let the finished go, then rank whoever changed."""
        load, tick = self.load, self.load.step - 1
        changed: list[Live] = []
        num_residents = len(self.residents)
        for cohort in self.placed:
            cohort.advance(tick, load.now_s)
        for cohort in self.placed:
            if cohort.events[0] >= (cohort.counter + 1) * self.num_rows:
                continue
            for live in cohort.due():
                context = live.offset + cohort.counter
                if context - live.view.prompt_tokens == live.output_tokens:
                    self._finish(live)
                else:
                    changed.append(live)
        stale = [cohort for cohort in self.placed if cohort.ask_at <= cohort.counter]
        if self.placed:
            self.evictions_without_token = 0
        if self.chunks:
            self._book_chunks(tick, changed)
        if changed or stale:
            self._count()
            self._rank_changed(changed, stale)
        elif (
            self.skip_ahead
            and self.is_steady
            and not self.chunks
            and len(self.residents) == num_residents
        ):
            self._repeat()
        while self.split_lanes:
            self._rejoin(self.split_lanes.pop())

    def _book_chunks(self, tick: int, changed: list[Live]) -> None:
        for live, chunk in self.chunks:
            is_first = live.prefill_left == live.context
            live.prefill_left -= chunk
            if live.prefill_left:
                if is_first:
                    changed.append(live)
                continue
            if live.in_prefills:
                self._unplace(live)
            self._emit_first(live, tick)
            if live.context - live.view.prompt_tokens == live.output_tokens:
                self._finish(live)
            else:
                changed.append(live)

    def _emit_first(self, live: Live, tick: int) -> None:
        """The token that ends a prefill."""
        now_s = self.load.now_s
        self.num_prefilling -= 1
        self.evictions_without_token = 0
        live.context += 1
        live.last_token_s = now_s
        self.record.run(live.row, tick, tick)
        if live.context == live.view.prompt_tokens + 1:
            self.record.first_token_s[live.row] = now_s

    def _finish(self, live: Live) -> None:
        if live.cohort is not None:
            live.cohort.leave(live, self.record)
        self.used_blocks -= -(-(live.context - 1) // self.block_tokens)
        del self.residents[live.row]
        live.version += 1
        self.record.finished_s[live.row] = self.load.now_s

    def _rank_changed(self, changed: list[Live], stale: list[Cohort]) -> None:
        for live in changed:
            self._unplace(live)
        if stale:
            self._rank_groups([cohort for cohort in stale if cohort.count])
        for live in changed:
            self._ask(live)
            self._place(live)

    def _repeat(self) -> None:
        """Run the step that just ran again and again, as long as it would be filled the same."""
        load, cohorts = self.load, self.placed
        limit = min(cohort.steps_to_event() for cohort in cohorts) - 1
        until_s = min(self.next_arrival_s, self.timers[0][0] if self.timers else inf)
        step_s, count = self.instance.latency.step_s, self.num_placed
        context = sum(cohort.context for cohort in cohorts)
        steps = 0
        while steps < limit and load.now_s < until_s:
            growth = 0
            for cohort in cohorts:
                growth += cohort.growth[(cohort.counter + steps) % self.block_tokens]
            if self.used_blocks + growth + self.headroom > self.total_blocks:
                break
            if self.has_rule and not self._rule_stays():
                break
            self.used_blocks += growth
            self._pass(step_s(count, context, ()))
            context += count
            steps += 1
        for cohort in cohorts:
            cohort.advance_many(steps, load.now_s)

    def _rule_stays(self) -> bool:
        """Ask for the next step's rule; keep it where it differs, so that it is asked for once."""
        self._count()
        self.load.used_blocks = self.used_blocks
        rule = self.policy.step_rule(self.load)
        if rule is self.rule or rule == self.rule:
            return True
        self.pending_rule = rule
        return False


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the search for reference cycles: it would walk all requests again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _lives(requests: Requests, record: Record) -> list[Live]:
    """The requests as the engine keeps them, by row."""
    columns = zip(
        requests.request_id.tolist(),
        requests.arrival_s.tolist(),
        requests.prompt_tokens.tolist(),
        requests.output_tokens.tolist(),
        requests.reasoning_tokens.tolist(),
        requests.score.tolist(),
        requests.user_class.tolist(),
        requests.tbt_s.tolist(),
        strict=True,
    )
    return [
        Live(
            row,
            RequestView(
                request_id,
                row,
                arrival_s,
                prompt_tokens,
                None if score != score else score,
                user_class,
                None if tbt_s != tbt_s else tbt_s,
            ),
            output_tokens,
            reasoning_tokens,
        )
        for row, (
            request_id,
            arrival_s,
            prompt_tokens,
            output_tokens,
            reasoning_tokens,
            score,
            user_class,
            tbt_s,
        ) in enumerate(columns)
    ]


def _limit(limit: int | None) -> float:
    return inf if limit is None else limit


def _rank_of(live: Live) -> Rank:
    """The rank in force: the cohort's, where the members share one."""
    shared = None if live.cohort is None else live.cohort.rank
    rank = shared or live.rank
    assert rank is not None
    return rank


def _order(live: Live) -> tuple[tuple[float, ...], int]:
    return _rank_of(live).key, live.row


def _evict_order(live: Live) -> tuple[bool, tuple[float, ...], int]:
    """Greater goes first; a request without evict_key goes for no other."""
    key = _rank_of(live).evict_key
    return key is not None, key or (), live.row
