"""The plan of a real engine's next step: the residents that run, the admissions, the evictions.

Steps equal those of the slow reference engine in `tests/`. While every resident fits into the step,
no rank is computed and nothing is sorted. The engine keeps its memory and its batch. Evictions, for
a decode without a block or for a better waiting request, are carried out in the engine at once.
"""

from collections.abc import Iterator
from itertools import chain
from math import inf
from typing import Generic

from scheduler_adapters.planner.engine_view import EngineView
from scheduler_adapters.planner.ranked_queue import (
    EngineRequest,
    Item,
    RankedQueue,
    RankEntry,
    RankOrder,
)
from scheduler_adapters.planner.request_tracker import RequestTracker
from scheduler_adapters.planner.residents import Residents
from scheduler_adapters.planner.step_budget import (
    Plan,
    Step,
    StepBudget,
    evict_order,
    fewest_victims,
)
from scheduler_adapters.policy import ask_rule
from scheduler_adapters.views import UNLIMITED, Phase, StepRule

# While every resident fits, decodes are not put in order, and reordered ones accumulate.
_MANY_REORDERED = 1024


class Planner(Generic[Item]):
    """Plans the steps of one engine by the policy's ranks.

    The engine reports its events to `residents`.
    """

    def __init__(
        self, tracker: RequestTracker, view: EngineView[Item], waiting: RankedQueue[Item]
    ) -> None:
        self.residents = Residents(tracker, view, waiting)
        self.num_deferred = 0
        """Residents left out of a step, summed over all steps."""
        self._tracker = tracker
        self._view = view
        self._waiting = waiting
        self._limits = view.max_num_seqs, view.max_chunk()
        self._budget = self._make_budget(UNLIMITED)
        self._decodes: RankOrder[Item] = RankOrder()

    def plan(self) -> Plan[Item] | None:
        """Return the next step, or None without any request; evicts in the engine."""
        load = self._tracker.load
        self._view.begin_step()
        self.residents.step_planned()
        if not (load.num_decoding or load.num_prefilling or load.num_waiting):
            return None
        self.residents.expire_in_time()
        rule = ask_rule(self._tracker.policy, load)
        limits = self._view.max_num_seqs, self._view.max_chunk()
        # A policy returns the same objects again and again.
        if rule is not self._budget.rule or limits != self._limits:
            self._limits = limits
            self._budget = self._make_budget(rule)
        plan = self._all_fit(self._budget)
        if plan is None or not plan.num_tokens:
            if self.residents.has_momentary:
                self.residents.rank_momentary()
            evicted = set[int]()
            if not (plan := self._fill(self._budget, evicted)).num_tokens:
                # The engine must not stall because of a rule: work that can run does.
                plan = self._fill(self._make_budget(UNLIMITED), evicted)
        return plan

    def _make_budget(self, rule: StepRule) -> StepBudget:
        max_num_seqs, max_chunk = self._limits
        return StepBudget(
            rule,
            max_tokens=self._view.max_tokens,
            max_num_seqs=max_num_seqs,
            max_chunk=max_chunk,
            whole_prompts=self._view.whole_prompts,
        )

    def _all_fit(self, budget: StepBudget) -> Plan[Item] | None:
        """Return the step of all residents and an admission per seat; None if it does not fit.

        Tokens counted by `most_needed` only may be left over: requests that could use them run.
        """
        residents, load, rule, view = self.residents, self._tracker.load, budget.rule, self._view
        num_decodes, num_prefills = load.num_decoding, load.num_prefilling
        if rule.padded_tokens or budget.whole_prompts or num_decodes > budget.max_decodes:
            return None
        seats = max(0, min(budget.seats - num_decodes - num_prefills, budget.max_admissions))
        prefills_left = budget.max_prefills - num_prefills
        may_admit = seats > 0 and load.num_waiting > 0
        if residents.num_loaded or prefills_left < 0 or (may_admit and 0 < prefills_left < seats):
            return None
        if not rule.mixed and num_decodes and (num_prefills or may_admit):
            return None
        tokens = budget.max_tokens - num_decodes
        for item in residents.prefilling.values():
            tokens -= min(residents.left_to_prefill(item), budget.chunk_limit)
        # Each decode may need a block; if that bound does not fit, it is worth counting.
        free_blocks = load.total_blocks - load.used_blocks - num_decodes * view.max_growth
        admitted = self._waiting.first_few(int(seats) + 1 if prefills_left else 0)
        unseated = admitted.pop() if len(admitted) > seats else None
        for at, item in enumerate(admitted):
            if view.is_blocked(item, admitted[:at]):
                return None
            for need in (view.most_needed, view.need):
                new_tokens, new_blocks = need(item, rule.displace)
                tokens_left = tokens - min(new_tokens, budget.chunk_limit)
                blocks_left = free_blocks - new_blocks
                if tokens_left >= 0 and blocks_left >= view.watermark_blocks:
                    break
            else:
                return None
            tokens, free_blocks = tokens_left, blocks_left
        if tokens < 0 or free_blocks < 0:
            return None
        if rule.displace and unseated is not None:
            # The bound first: most often it shows that no resident is worse, without a search.
            limit = unseated.lengthwise.rank.evict_key
            if limit is not None and residents.worst_evict_key > limit:
                needs = (view.most_needed, view.need)
                waits = any(free_blocks >= need(unseated, 1)[1] for need in needs)
                waits = waits and not view.is_blocked(unseated, admitted)
                if not waits and residents.any_after(limit):
                    return None
        residents.left_out.clear()
        if len(residents.reordered) > _MANY_REORDERED:
            self._decodes_by_rank()
        return Plan(int(budget.max_tokens - tokens), admitted, budget.max_chunk)

    def _fill(self, budget: StepBudget, evicted: set[int]) -> Plan[Item]:
        budget.begin()
        residents, view, waiting = self.residents, self._view, self._waiting
        if view.free_blocks() < len(residents) * view.max_growth:
            view.release(residents)
        step: Step[Item] = Step(budget, residents.free_blocks(), evicted)
        for item in view.loaded():
            _, blocks = view.need(item)
            if blocks <= step.free_blocks and budget.admits(len(residents) + len(step.seated)):
                step.free_blocks -= blocks
                step.seated.append(item)
                budget.num_admissions += 1
        if budget.rule.displace:
            displace(residents, waiting, step)
        decodes = self._decodes_by_rank()
        prefills = RankOrder(chain(residents.prefilling.values(), step.seated))
        lane = -inf
        while (lane := min(each.lane_after(lane) for each in (decodes, prefills, waiting))) < inf:
            self._place_decodes(step, decodes.in_lane(lane))
            for _, _, _, item in prefills.in_lane(lane):
                if not self._place_prefill(step, item):
                    break
            if not budget.rule.displace:
                self._admit(step, lane)
        waiting.unplan()
        return Plan(
            num_tokens=budget.num_decodes + step.prefill_tokens,
            admitted=step.admitted,
            chunk=budget.max_chunk,
            left_out=self._leave_out(step, decodes.entries + prefills.entries),
            last=step.last,
        )

    def _leave_out(self, step: Step[Item], entries: list[RankEntry[Item]]) -> list[Item]:
        """Return the residents that do not run, and note when each of them last ran."""
        residents, newest_s = self.residents, self._tracker.load.last_step_end_s
        others = step.placed | step.evicted if step.evicted else step.placed
        if step.seated:
            others = others | {item.lengthwise.view.number for item in step.seated}
        left_out = [entry for entry in entries if entry[2] not in others]
        ended_s = residents.left_out.get
        residents.left_out = {number: ended_s(number, newest_s) for _, _, number, _ in left_out}
        self.num_deferred += len(left_out)
        return [entry[-1] for entry in left_out]

    def _decodes_by_rank(self) -> RankOrder[Item]:
        """Return all decodes in order; only reordered ones are sorted in anew."""
        decoding, reordered = self.residents.decoding, self.residents.reordered
        if 8 * len(reordered) > len(self._decodes.entries):
            self._decodes = RankOrder(decoding.values())
        else:
            for number in reordered:
                self._decodes.remove(number)
                if (item := decoding.get(number)) is not None:
                    self._decodes.add(item)
        reordered.clear()
        return self._decodes

    def _place_decodes(self, step: Step[Item], entries: list[RankEntry[Item]]) -> None:
        if step.free_blocks >= len(entries) * self._view.max_growth:
            # There is a block for each of them.
            if step.evicted:
                entries = [entry for entry in entries if entry[2] not in step.evicted]
            entries = entries[: step.budget.place_decodes(len(entries))]
            step.free_blocks -= self._view.growth([entry[-1] for entry in entries])
            step.placed.update([entry[2] for entry in entries])
            return
        for _, _, number, item in entries:
            if not step.budget.takes_decodes():
                return
            if number not in step.evicted and secure_block(self.residents, step, item):
                step.placed.add(number)
                step.budget.place_decodes(1)

    def _place_prefill(self, step: Step[Item], item: Item) -> bool:
        """Give a prefill its chunk; return False once the step takes no further one."""
        number = item.lengthwise.view.number
        if number in step.evicted:
            return True
        is_new = item in step.seated
        left = self._view.need(item)[0] if is_new else self.residents.left_to_prefill(item)
        if not (chunk := step.budget.chunk(left)):
            return False
        if is_new:
            step.admitted.append(item)
        elif chunk < min(left, step.budget.chunk_limit):
            # It gets the rest of the budget. The engine serves residents before admissions, so a
            # resident that ranks behind an admission would take its tokens, and has to wait.
            if step.admitted:
                return False
            step.last = item
        step.prefill_tokens += step.budget.place_prefill(chunk)
        step.placed.add(number)
        return True

    def _admit(self, step: Step[Item], lane: float) -> None:
        for _, _, _, item in () if step.admission_closed else self._waiting.turns(lane):
            if self._view.is_blocked(item, step.admitted):
                continue
            # Seats and budget first: they cost less than `need`.
            taken = len(self.residents) + step.budget.num_admissions
            if step.budget.chunk(1) and step.budget.admits(taken):
                tokens, blocks = self._view.need(item)
                free_after = step.free_blocks - blocks
                chunk = step.budget.chunk(tokens)
                if chunk and free_after >= self._view.watermark_blocks:
                    step.free_blocks = free_after
                    step.admitted.append(item)
                    step.budget.num_admissions += 1
                    step.prefill_tokens += step.budget.place_prefill(chunk)
                    continue
            step.admission_closed = True
            return


def secure_block(residents: Residents[Item], step: Step[Item], decode: Item) -> bool:
    """Reserve the block for a decode's next token, by eviction if needed.

    False if the decode itself was evicted, or no resident could be.
    """
    needed = residents.view.growth([decode])
    priority = decode.lengthwise.priority or 0
    while step.free_blocks < needed:
        victim = decode
        for item in residents:
            tracked = item.lengthwise
            may_go = tracked.rank.evict_key is not None or (tracked.priority or 0) > priority
            if may_go and tracked.view.number not in step.placed:
                victim = max(victim, item, key=_evict_order)
        if not _evict(residents, step, victim) or victim is decode:
            return False
    step.free_blocks -= needed
    return True


def displace(residents: Residents[Item], waiting: RankedQueue[Item], step: Step[Item]) -> None:
    """Evict worse residents for the best waiting requests, as far as that makes room."""
    view = residents.view
    while step.budget.num_admissions < step.budget.max_admissions:
        # From the first each time: an eviction queues the victim.
        others = (item for item in waiting.in_order() if item not in step.seated)
        best = next((item for item in others if not view.is_blocked(item, step.seated)), None)
        if best is None or best.lengthwise.view.number in step.evicted:
            return
        if not _make_room(residents, step, best):
            return
        step.free_blocks -= view.need(best)[1]
        step.seated.append(best)
        waiting.plan(best)
        step.budget.num_admissions += 1


def _make_room(residents: Residents[Item], step: Step[Item], best: Item) -> bool:
    """Evict the fewest worst residents that make room for `best`, or none if they do not."""
    view = residents.view
    seats = step.budget.seats - len(residents) - len(step.seated) - 1
    if seats < 0 and not residents.any_after(best.lengthwise.rank.evict_key):
        return False
    growth = view.growth(list(residents.decoding.values()))
    room = step.free_blocks - growth - view.need(best, 1)[1]
    victims = fewest_victims(room, seats, _worse_than(residents, best))
    return victims is not None and all(_evict(residents, step, victim) for victim in victims)


def _worse_than(residents: Residents[Item], best: Item) -> Iterator[tuple[Item, int]]:
    """Yield the residents worse than `best`, worst first, and the blocks freed up to each."""
    limit = best.lengthwise.rank.evict_key
    worse = [
        item
        for item in residents
        if limit is not None and (item.lengthwise.rank.evict_key or ()) > limit
    ]
    victims: list[Item] = []
    for item in sorted(worse, key=_evict_order, reverse=True):
        victims.append(item)
        decodes = [each for each in victims if each.lengthwise.view.phase > Phase.PREFILL]
        yield item, residents.freed_blocks(victims, hit_by=best) + residents.view.growth(decodes)


def _evict(residents: Residents[Item], step: Step[Item], item: Item) -> bool:
    held = residents.freed_blocks([item])
    if not residents.view.evict(item):
        return False
    step.free_blocks += held
    step.evicted.add(item.lengthwise.view.number)
    return True


def _evict_order(item: EngineRequest) -> tuple[int, bool, tuple[float, ...], int]:
    tracked = item.lengthwise
    return tracked.priority or 0, *evict_order(tracked.rank, tracked.view.number)
