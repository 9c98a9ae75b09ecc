"""When KV blocks run out: who has to go, and who may take whose place."""

from __future__ import annotations

from heapq import heappop

from scheduler_adapters.planner.step_budget import StepBudget, evict_order
from scheduler_adapters.simulator.engine.cohort import Cohort, Live
from scheduler_adapters.simulator.engine.offload import Offload
from scheduler_adapters.simulator.engine.ranks import rank_of
from scoring_service.errors import SchedulingError

MAX_EVICTIONS_PER_REQUEST = 10
"""Without any token in between; more is a loop."""


class Eviction(Offload):
    """The third layer of the engine: blocks, eviction, displacement.

    What is evicted is rare, so residents are simply walked.
    """

    __slots__ = (
        "budget",
        "chunks",
        "evictions_without_token",
        "headroom",
        "is_steady",
        "offloads",
        "placed",
        "total_blocks",
    )

    total_blocks: int
    headroom: int
    """Free blocks a decode insists on even when it needs none."""
    placed: list[Cohort]
    """Cohorts in the step that is being filled."""
    chunks: list[tuple[Live, int]]
    """Prefills in it, with their tokens."""
    budget: StepBudget
    offloads: bool
    """Whether what is evicted goes to the host."""
    is_steady: bool
    """Whether the step could be repeated as it is."""
    evictions_without_token: int

    def _admit_one(self, live: Live) -> None:
        """Give a request its seat and its blocks, to be computed or copied back."""
        self.is_steady = False  # the next step may admit more, whatever stopped this one
        self.budget.num_admissions += 1
        self.load.num_started += 1
        live.view.admission_number = self.load.num_started
        if live.host_blocks:
            self._reload(live)
        else:
            self._make_resident(live)

    def _make_resident(self, live: Live) -> None:
        self.used_blocks += -(-live.context // self.block_tokens)
        live.is_waiting = False
        live.prefill_left = live.context
        self.residents[live.row] = live
        self.num_waiting -= 1
        self.num_prefilling += 1

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
            order = evict_order_of(live)
            victims = [
                other
                for other in self.residents.values()
                if evict_order_of(other)[0]
                and evict_order_of(other) > order
                and not other.is_moving
                and not self._is_placed(other)
            ]
            victim = max(victims, key=evict_order_of, default=live)
            self._evict(victim)
            if victim is live:
                return False
        self.used_blocks += needed
        return True

    def _evict(self, live: Live) -> None:
        self.is_steady = False
        blocks = self._blocks_of(live)
        self.used_blocks -= blocks
        if self.offloads:
            computed = live.context - live.prefill_left
            self._offload(live, -(-computed // self.block_tokens) if live.prefill_left else blocks)
        if live.cohort is None:
            self.num_prefilling -= 1
        self._unplace(live)
        live.is_waiting = True
        live.evicted_s = self.load.now_s
        live.view.preemptions += 1
        self.record.preemptions[live.row] += 1
        del self.residents[live.row]
        self.num_waiting += 1
        self.evictions_without_token += 1
        self._refuse_endless_eviction(live.view.request_id)
        self._ask(live)
        self._enqueue(live)

    def _refuse_endless_eviction(self, request_id: str) -> None:
        num_live = len(self.residents) + self.num_waiting - self.num_returning
        if self.evictions_without_token > MAX_EVICTIONS_PER_REQUEST * num_live:
            raise SchedulingError(
                f"policy {self.policy.name!r} evicts without end at {self.load.now_s} s, last "
                f"request {request_id!r}; let a request run before it can be evicted"
            )

    def _displace(self) -> None:
        """Admit the best waiting requests, evicting worse residents if that makes enough room."""
        while (best := self._best_waiting()) is not None:
            if best.is_moving or best.evicted_s == self.load.now_s or not self._make_room(best):
                return
            self._admit_one(best)
            self._place(best)

    def _best_waiting(self) -> Live | None:
        for lane in self.lanes:
            waiting = lane.waiting
            while waiting:
                _, row, version = waiting[0]
                live = self.lives[row]
                if live.version == version and live.is_waiting:
                    return live
                heappop(waiting)
        return None

    def _make_room(self, best: Live) -> bool:
        """Evict the fewest worst residents that let `best` in; none where that is impossible."""
        budget = self.budget
        if budget.num_admissions >= budget.max_admissions:
            return False
        growth = sum(cohort.grows() for lane in self.lanes for cohort in lane.cohorts)
        needed = -(-best.next_context // self.block_tokens)
        room = self.total_blocks - self.used_blocks - growth - needed
        if best.host_blocks:
            room -= self.headroom
        free_seats = budget.seats - len(self.residents) - 1
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
            evict_key = rank_of(live).evict_key
            if evict_key is not None and evict_key > key and not live.is_moving:
                worse.append(live)
        return sorted(worse, key=evict_order_of, reverse=True)


def evict_order_of(live: Live) -> tuple[bool, tuple[float, ...], int]:
    """Return the place of a resident in the order of eviction."""
    return evict_order(rank_of(live), live.row)
