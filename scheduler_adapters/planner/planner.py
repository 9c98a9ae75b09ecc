"""The plan of a real engine's next step: the residents that run, and the newcomers.

The rules are those of `step_budget.py`, and the steps are those of the slow reference engine in
`tests/`. They are cheap enough for a real engine: as long as every resident fits into the step, no
rank is asked for and nothing is sorted. The engine keeps its memory and its batch.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from itertools import chain
from math import inf
from operator import itemgetter
from typing import Any, Generic, TypeVar

from scheduler_adapters.planner.eviction import StepEviction
from scheduler_adapters.planner.ranking import RankedQueue, Ranker
from scheduler_adapters.planner.residents import Border, Residents
from scheduler_adapters.planner.step_budget import Plan, Step, StepBudget
from scheduler_adapters.policy import ask_rule
from scheduler_adapters.views import UNLIMITED, StepRule

Item = TypeVar("Item")
_Entry = tuple[Any, ...]


class Planner(Generic[Item]):
    """Plans the steps of one engine by the policy's ranks; the engine tells `residents` of them."""

    def __init__(self, ranker: Ranker, border: Border[Item], waiting: RankedQueue[Item]) -> None:
        self.residents = Residents(ranker, border, waiting.entries)
        self.num_deferred = 0
        """Residents left out of a step, summed over all steps."""
        self._ranker = ranker
        self._border = border
        self._waiting = waiting
        self._eviction = StepEviction(self.residents, waiting)
        self._limits = border.max_num_seqs, border.max_chunk()
        self._budget = self._make_budget(UNLIMITED)
        self._decodes_in_order: list[_Entry] = []
        self._decode_entries: dict[int, _Entry] = {}
        """The entries of that list by number."""

    def plan(self) -> Plan[Item] | None:
        """Return the next step, or None where there is nothing to do; evicts in the engine."""
        load = self._ranker.load
        self._border.begin_step()
        self.residents.step_planned()
        if not (load.num_decoding or load.num_prefilling or load.num_waiting):
            return None
        self.residents.expire_in_time()
        rule = ask_rule(self._ranker.policy, load)
        limits = self._border.max_num_seqs, self._border.max_chunk()
        # A policy gives the same objects again and again.
        if rule is not self._budget.rule or limits != self._limits:
            self._limits = limits
            self._budget = self._make_budget(rule)
        plan = self._all_fit(self._budget)
        if plan is None or not plan.num_tokens:
            if self.residents.has_momentary:
                self.residents.rank_momentary()
            evicted = set[int]()
            plan = self._fill(self._budget, evicted)
            if not plan.num_tokens:
                # The engine must not stall because of a rule: work that can run does.
                plan = self._fill(self._make_budget(UNLIMITED), evicted)
        return plan

    def _make_budget(self, rule: StepRule) -> StepBudget:
        border, (max_num_seqs, max_chunk) = self._border, self._limits
        return StepBudget(
            rule,
            max_tokens=border.max_tokens,
            max_num_seqs=max_num_seqs,
            max_chunk=max_chunk,
            whole_prompts=border.whole_prompts,
        )

    def _all_fit(self, budget: StepBudget) -> Plan[Item] | None:
        """Return the step of all residents and a newcomer per seat; None if it is too small.

        Tokens that only `most_needed` counts are left over: whoever could take them runs anyway.
        """
        residents, load, rule, border = self.residents, self._ranker.load, budget.rule, self._border
        num_decodes, num_prefills = load.num_decoding, load.num_prefilling
        if rule.padded_tokens or budget.whole_prompts or num_decodes > budget.max_decodes:
            return None
        if residents.num_loaded:
            return None
        tokens = budget.max_tokens - num_decodes
        # Each decode may need a block; if that bound does not fit, it is worth counting.
        free_blocks = load.total_blocks - load.used_blocks - num_decodes * border.max_growth
        for item in residents.prefilling.values():
            tokens -= min(residents.left_to_prefill(item), budget.chunk_limit)
        seats = max(0, min(budget.seats - num_decodes - num_prefills, budget.max_admissions))
        prefills_left = budget.max_prefills - num_prefills
        may_admit = seats > 0 and load.num_waiting > 0
        if prefills_left < 0 or (may_admit and 0 < prefills_left < seats):
            return None
        if not rule.mixed and num_decodes and (num_prefills or may_admit):
            return None
        newcomers = self._waiting.first_few(int(seats) + 1 if prefills_left else 0)
        unseated = newcomers.pop() if len(newcomers) > seats else None
        for at, item in enumerate(newcomers):
            if border.is_blocked(item, newcomers[:at]):
                return None
            for need in (border.most_needed, border.need):
                new_tokens, new_blocks = need(item, rule.displace)
                tokens_left = tokens - min(new_tokens, budget.chunk_limit)
                blocks_left = free_blocks - new_blocks
                if tokens_left >= 0 and blocks_left >= border.watermark_blocks:
                    break
            else:
                return None
            tokens, free_blocks = tokens_left, blocks_left
        if tokens < 0 or free_blocks < 0:
            return None
        # The bound first: most often it says that nobody ranks behind, which ends the question.
        if rule.displace and unseated is not None and self._eviction.might_displace(unseated):
            needs = (border.most_needed, border.need)
            waits = any(free_blocks >= need(unseated, 1)[1] for need in needs)
            waits = waits and not border.is_blocked(unseated, newcomers)
            if not waits and self._eviction.may_displace(unseated):
                return None
        residents.left_out.clear()
        if len(residents.reordered) > _MANY_REORDERED:
            self._decodes_by_rank()
        num_tokens = int(budget.max_tokens - tokens)
        return Plan(num_tokens=num_tokens, newcomers=newcomers, chunk=budget.max_chunk)

    def _fill(self, budget: StepBudget, evicted: set[int]) -> Plan[Item]:
        budget.begin()
        residents, border = self.residents, self._border
        if border.free_blocks() < len(residents) * border.max_growth:
            border.release(residents)
        step: Step[Item] = Step(budget, residents.free_blocks(), evicted)
        self._seat_loaded(step)
        displaces = budget.rule.displace
        if displaces:
            self._eviction.displace(step)
        decodes = self._decodes_by_rank()
        prefills = self._in_order(chain(residents.prefilling.values(), step.displacing))
        lane = -inf
        while (lane := self._next_lane(lane, decodes, prefills)) < inf:
            self._place_decodes(step, _in_lane(decodes, lane))
            for _, _, _, item in _in_lane(prefills, lane):
                if not self._place_prefill(step, item):
                    break
            if not displaces:
                self._admit(step, lane)
        return Plan(
            num_tokens=budget.num_decodes + step.prefill_tokens,
            newcomers=step.newcomers,
            chunk=budget.max_chunk,
            left_out=self._leave_out(step, decodes, prefills),
            last=step.last,
        )

    def _seat_loaded(self, step: Step[Item]) -> None:
        """Give seats to the waiting requests that hold blocks; they run as prefills in progress."""
        for item in self._border.loaded():
            _, blocks = self._border.need(item)
            taken = len(self.residents) + len(step.displacing)
            if blocks <= step.free_blocks and step.budget.admits(taken):
                step.free_blocks -= blocks
                step.displacing.append(item)
                step.budget.num_admissions += 1

    def _leave_out(
        self, step: Step[Item], decodes: list[_Entry], prefills: list[_Entry]
    ) -> list[Item]:
        """Return the residents that do not run, and note when each of them last ran."""
        residents, newest_s = self.residents, self._ranker.load.last_step_end_s
        gone = step.placed | step.evicted if step.evicted else step.placed
        if step.displacing:
            gone = gone | {self._border.tracked(item).view.number for item in step.displacing}
        left_out = [entry for entry in chain(decodes, prefills) if entry[2] not in gone]
        ended_s = residents.left_out.get
        residents.left_out = {number: ended_s(number, newest_s) for _, _, number, _ in left_out}
        self.num_deferred += len(left_out)
        return [entry[-1] for entry in left_out]

    def _decodes_by_rank(self) -> list[_Entry]:
        """Return all decodes in order; only those whose place changed are put into it anew."""
        order, decoding = self._decodes_in_order, self.residents.decoding
        reordered = self.residents.reordered
        if 8 * len(reordered) > len(order):
            order[:] = self._in_order(decoding.values())
            self._decode_entries = {entry[2]: entry for entry in order}
        else:
            for number, name in reordered.items():
                if (entry := self._decode_entries.pop(number, None)) is not None:
                    del order[bisect_left(order, entry)]
                if (item := decoding.get(name)) is not None:
                    entry = self._decode_entries[number] = self._entry(item)
                    insort(order, entry)
        reordered.clear()
        return order

    def _in_order(self, items: Iterable[Item]) -> list[_Entry]:
        return sorted(map(self._entry, items))

    def _entry(self, item: Item) -> _Entry:
        tracked = self._border.tracked(item)
        return tracked.rank.lane, tracked.rank.key, tracked.view.number, item

    def _next_lane(self, lane: float, *residents: list[_Entry]) -> float:
        following = self._waiting.lane_after(lane)
        for entries in residents:
            at = bisect_right(entries, lane, key=_lane)
            if at < len(entries):
                following = min(following, entries[at][0])
        return following

    def _place_decodes(self, step: Step[Item], entries: list[_Entry]) -> None:
        if step.free_blocks >= len(entries) * self._border.max_growth:
            self._place_all(step, entries)
            return
        for _, _, number, item in entries:
            if not step.budget.takes_decodes():
                return
            if number not in step.evicted and self._eviction.secure_block(step, item):
                step.placed.add(number)
                step.budget.place_decodes(1)

    def _place_all(self, step: Step[Item], entries: list[_Entry]) -> None:
        """Place as many decodes as the step takes; there is a block for each of them."""
        if step.evicted:
            entries = [entry for entry in entries if entry[2] not in step.evicted]
        entries = entries[: step.budget.place_decodes(len(entries))]
        step.free_blocks -= self._border.growth([entry[-1] for entry in entries])
        step.placed.update([entry[2] for entry in entries])

    def _place_prefill(self, step: Step[Item], item: Item) -> bool:
        """Give a prefill its chunk. False once the step takes no further one."""
        number = self._border.tracked(item).view.number
        if number in step.evicted:
            return True
        is_new = item in step.displacing
        left = self._border.need(item)[0] if is_new else self.residents.left_to_prefill(item)
        chunk = step.budget.chunk(left)
        if not chunk:
            return False
        if is_new:
            step.newcomers.append(item)
        elif chunk < min(left, step.budget.chunk_limit):
            # It gets what the others leave. The engine serves residents before newcomers, so one
            # that ranks behind a newcomer would take its tokens, and has to wait instead.
            if step.newcomers:
                return False
            step.last = item
        step.add_prefill(chunk)
        step.placed.add(number)
        return True

    def _admit(self, step: Step[Item], lane: float) -> None:
        if step.admission_closed:
            return
        for item in self._waiting.in_lane(lane):
            if self._border.is_blocked(item, step.newcomers):
                continue
            # Whether anybody may come costs less than what this one needs.
            taken = len(self.residents) + step.budget.num_admissions
            if step.budget.chunk(1) and step.budget.admits(taken):
                tokens, blocks = self._border.need(item)
                free_after = step.free_blocks - blocks
                chunk = step.budget.chunk(tokens)
                if chunk and free_after >= self._border.watermark_blocks:
                    step.free_blocks = free_after
                    step.newcomers.append(item)
                    step.budget.num_admissions += 1
                    step.add_prefill(chunk)
                    continue
            step.admission_closed = True
            return


_lane = itemgetter(0)
_MANY_REORDERED = 1024
"""While every resident fits, the decodes are not put in order, and those to be placed gather."""


def _in_lane(entries: list[_Entry], lane: float) -> list[_Entry]:
    if entries and entries[0][0] == entries[-1][0] == lane:
        return entries
    start = bisect_left(entries, lane, key=_lane)
    return entries[start : bisect_right(entries, lane, start, key=_lane)]
