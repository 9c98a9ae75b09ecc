"""Eviction from a planned step: for a decode without a block, or for a better waiting request.

The order is `step_budget.evict_order`. For a waiting request residents go only where its blocks are
missing and that makes enough room (`step_budget.fewest_victims`).
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

from scheduler_adapters.planner.ranking import RankedQueue
from scheduler_adapters.planner.residents import Residents
from scheduler_adapters.planner.step_budget import Step, evict_order, fewest_victims
from scheduler_adapters.views import Phase

Item = TypeVar("Item")


class StepEviction(Generic[Item]):
    """Makes room in a step, and in the engine at once."""

    def __init__(self, residents: Residents[Item], waiting: RankedQueue[Item]) -> None:
        self._residents = residents
        self._border = residents.border
        self._waiting = waiting

    def secure_block(self, step: Step[Item], asker: Item) -> bool:
        """Reserve the block for a decode's next token, by eviction where need be."""
        needed = self._border.growth([asker])
        while step.free_blocks < needed:
            victim = self._victim(step, asker)
            if not self._evict(step, victim) or victim is asker:
                return False
        step.free_blocks -= needed
        return True

    def _victim(self, step: Step[Item], asker: Item) -> Item:
        """Return the resident to evict when `asker` finds no block; itself where none is worse."""
        victim, priority = asker, self._border.tracked(asker).priority or 0
        for item in self._residents:
            tracked = self._border.tracked(item)
            may_go = tracked.rank.evict_key is not None or (tracked.priority or 0) > priority
            if may_go and tracked.view.number not in step.placed:
                victim = max(victim, item, key=self._evict_order)
        return victim

    def _evict_order(self, item: Item) -> tuple[int, bool, tuple[float, ...], int]:
        tracked = self._border.tracked(item)
        return tracked.priority or 0, *evict_order(tracked.rank, tracked.view.number)

    def _evict(self, step: Step[Item], item: Item) -> bool:
        held = self._residents.freed_blocks([item])
        if not self._border.evict(item):
            return False
        step.free_blocks += held
        step.evicted.add(self._border.tracked(item).view.number)
        return True

    def displace(self, step: Step[Item]) -> None:
        """Evict worse residents for the best waiting requests, as far as that makes room."""
        taken: set[int] = set()
        while (best := self._best_waiting(step, taken)) is not None:
            number = self._border.tracked(best).view.number
            if number in step.evicted or not self._make_room(step, best):
                return
            step.free_blocks -= self._border.need(best)[1]
            step.displacing.append(best)
            step.budget.num_admissions += 1
            taken.add(number)

    def _best_waiting(self, step: Step[Item], taken: set[int]) -> Item | None:
        border = self._border
        for item in self._waiting:
            if border.tracked(item).view.number in taken:
                continue
            if not border.is_blocked(item, step.displacing):
                return item
        return None

    def _make_room(self, step: Step[Item], best: Item) -> bool:
        """Evict the fewest worst residents that let `best` in; none where that is impossible."""
        if step.budget.num_admissions >= step.budget.max_admissions:
            return False
        residents, border = self._residents, self._border
        seats = step.budget.seats - len(residents) - len(step.displacing) - 1
        if seats < 0 and not self.may_displace(best):
            return False
        growth = border.growth(list(residents.decoding.values()))
        room = step.free_blocks - growth - border.need(best, 1)[1]
        victims = fewest_victims(room, seats, self._worse_than(best))
        return victims is not None and all(self._evict(step, victim) for victim in victims)

    def might_displace(self, best: Item) -> bool:
        """Return whether some resident may be worse than a waiting request, at no search."""
        limit = self._border.tracked(best).rank.evict_key
        return limit is not None and self._residents.worst_evict_key > limit

    def may_displace(self, best: Item) -> bool:
        """Return whether some resident is worse than a waiting request."""
        limit = self._border.tracked(best).rank.evict_key
        return limit is not None and self._residents.any_after(limit)

    def _worse_than(self, best: Item) -> Iterator[tuple[Item, int]]:
        """Yield the residents that may go for `best`, worst first, and the blocks freed so far."""
        residents, border = self._residents, self._border
        limit = border.tracked(best).rank.evict_key
        if limit is None:
            return
        worse = [
            item
            for item in residents
            if (key := border.tracked(item).rank.evict_key) is not None and key > limit
        ]
        victims: list[Item] = []
        for item in sorted(worse, key=self._evict_order, reverse=True):
            victims.append(item)
            decodes = [i for i in victims if border.tracked(i).view.phase > Phase.PREFILL]
            yield item, residents.freed_blocks(victims, hit_by=best) + border.growth(decodes)
