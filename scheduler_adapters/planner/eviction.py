"""Eviction from a planned step: for a decode without a block, or for a better waiting request.

Evictions are carried out in the engine at once.
"""

from collections.abc import Iterator

from scheduler_adapters.planner.ranking import EngineRequest, Item, RankedQueue
from scheduler_adapters.planner.residents import Residents
from scheduler_adapters.planner.step_budget import Step, evict_order, fewest_victims
from scheduler_adapters.views import Phase


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
