"""The KV memory of one instance: admission to it, eviction from it, and displacement."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop
from typing import TYPE_CHECKING

from lengthwise.errors import SchedulingError
from scheduler_adapters.planner.step_budget import evict_order, fewest_victims
from scheduler_adapters.simulator.engine.offload import StoredBlocks
from scheduler_adapters.simulator.engine.ranked_requests import RankedRequests
from scheduler_adapters.simulator.engine.request_state import RequestState, rank_of
from scheduler_adapters.simulator.engine.state import EngineState, StepInProgress

if TYPE_CHECKING:
    from scheduler_adapters.simulator.engine.vllm_habits import VllmHabits

MAX_EVICTIONS_PER_REQUEST = 10
"""Without any token in between; more is a loop."""


class KvMemory:
    """Blocks of the residents. Evictions are rare, so residents are walked one by one."""

    __slots__ = (
        "admitted", "block_tokens", "habits", "headroom", "load", "ranks", "residents", "state",
        "step", "stored", "total_blocks",
    )  # fmt: skip

    def __init__(
        self,
        state: EngineState,
        ranks: RankedRequests,
        stored: StoredBlocks,
        habits: VllmHabits | None,
    ) -> None:
        instance = state.instance
        self.state = state
        self.load = state.load
        self.residents = state.residents
        self.admitted = state.events.admitted
        self.ranks = ranks
        self.stored = stored
        self.step = StepInProgress()
        self.habits = habits
        self.block_tokens = instance.block_tokens
        self.total_blocks = instance.kv_blocks
        self.headroom = instance.decode_headroom_blocks
        """Free blocks a decode insists on even when it needs none."""

    def admit(self, live: RequestState) -> None:
        """Give a request its seat and its blocks, to be computed or copied back."""
        state, load = self.state, self.load
        self.step.is_steady = False  # the next step may admit more, whatever stopped this one
        self.step.budget.num_admissions += 1
        load.num_started += 1
        live.view.admission_number = load.num_started
        live.is_waiting = False
        self.residents[live.row] = live
        if live.stored_blocks:
            is_whole = not live.prefill_left
            load.used_blocks += (
                live.stored_blocks if is_whole else -(-live.context // self.block_tokens)
            )
            state.num_returning += 1
            self.stored.reload(live)
        else:
            live.prefill_left = live.context
            if self.habits is not None:
                self.habits.keep_prefix(live, load.used_blocks, self.block_tokens)
            load.used_blocks += -(-live.context // self.block_tokens)
            state.num_waiting -= 1
            state.waiting_tokens -= live.view.prompt_tokens
            state.num_prefilling += 1
        if self.admitted:
            for tell in self.admitted:
                tell(live.sync_view(), load.now_s)

    def blocks_of(self, live: RequestState) -> int:
        """Return the blocks that a resident holds which is not in the step yet."""
        if live.is_moving and not live.prefill_left:
            return live.stored_blocks
        context = live.now_context - (live.batch is not None)
        return -(-context // self.block_tokens)

    def growth_of(self, live: RequestState) -> int:
        """Return the blocks that the next token of a resident needs: 1 or 0."""
        return int(live.batch is not None and (live.now_context - 1) % self.block_tokens == 0)

    def _is_placed(self, live: RequestState) -> bool:
        if live.placed_step == self.load.step:
            return True
        if live.batch is not None:
            return live.batch in self.step.placed
        return any(other is live for other, _ in self.step.chunks)

    def secure_block(self, live: RequestState) -> bool:
        """Take the block for the next token of a decode, by eviction where need be."""
        needed = self.growth_of(live)
        while self.total_blocks - self.load.used_blocks < max(needed, self.headroom):
            order = _evict_order(live)
            victims = [
                other
                for other in self.residents.values()
                if _evict_order(other)[0]
                and _evict_order(other) > order
                and not other.is_moving
                and not self._is_placed(other)
            ]
            victim = max(victims, key=_evict_order, default=live)
            self._evict(victim)
            if victim is live:
                return False
        self.load.used_blocks += needed
        return True

    def _evict(self, live: RequestState) -> None:
        state, load, blocks = self.state, self.load, self.blocks_of(live)
        self.step.is_steady = False
        if self.habits is not None:
            self.habits.evicted(live, blocks, load)
        load.used_blocks -= blocks
        if self.step.offloads:
            self.stored.offload(live, -(-live.computed_tokens // self.block_tokens))
        if live.batch is None:
            state.num_prefilling -= 1
        self.ranks.unplace(live)
        live.is_waiting = True
        live.evicted_s = load.now_s
        live.view.preemptions += 1
        state.record.preemptions[live.row] += 1
        del self.residents[live.row]
        state.num_waiting += 1
        state.waiting_tokens += live.view.prompt_tokens
        state.evictions_without_token += 1
        self.refuse_endless_eviction(live.view.request_id)
        for tell in state.events.evicted:
            tell(live.sync_view(), load.now_s)
        self.ranks.wait_again(live)

    def refuse_endless_eviction(self, request_id: str) -> None:
        """Raise `SchedulingError` after too many evictions without a token; name the last."""
        state = self.state
        num_live = len(self.residents) + state.num_waiting - state.num_returning
        if state.evictions_without_token > MAX_EVICTIONS_PER_REQUEST * num_live:
            raise SchedulingError(
                f"policy {state.policy.name!r} evicts without end at {self.load.now_s} s, last "
                f"request {request_id!r}; let a request run before it can be evicted"
            )

    def displace(self) -> None:
        """Admit the best waiting requests, evicting worse residents if that makes enough room."""
        while (best := self._best_waiting()) is not None:
            if best.evicted_s == self.load.now_s:
                self.step.is_steady = False  # it may displace others in the next step
                return
            if best.is_moving or not self._make_room(best):
                return
            self.admit(best)
            self.ranks.place(best)

    def _best_waiting(self) -> RequestState | None:
        for lane in self.ranks.lanes:
            waiting = lane.waiting
            while waiting:
                _, row, version = waiting[0]
                live = self.state.lives[row]
                if live.version == version and live.is_waiting:
                    return live
                heappop(waiting)
        return None

    def _make_room(self, best: RequestState) -> bool:
        """Evict the fewest worst residents that let `best` in; none where that is impossible."""
        budget = self.step.budget
        if budget.num_admissions >= budget.max_admissions:
            return False
        room = self.total_blocks - self.load.used_blocks - self._blocks_for(best)
        for lane in self.ranks.lanes:
            for batch in lane.batches:
                room -= batch.growth[batch.counter % self.block_tokens]
        seats = budget.seats - len(self.residents) - 1
        if room >= 0 and seats >= 0:  # as mostly
            return True
        victims = fewest_victims(room, seats, self._worse_than(best))
        for victim in victims or ():
            self._evict(victim)
        return victims is not None

    def _blocks_for(self, best: RequestState) -> int:
        """Return the blocks that admit a waiting request, its next token's included."""
        blocks = -(-best.next_context // self.block_tokens)
        return blocks + self.headroom if best.stored_blocks else blocks

    def blocks_awaited(self) -> int:
        """Return how many free blocks keep the best waiting request from displacing anybody.

        0 where none displaces. It has no seat; once blocks are missing as well, it may evict.
        """
        step, load = self.step, self.load
        if not step.rule.displace or len(self.residents) < step.budget.seats:
            return 0
        best = self._best_waiting()
        # Decodes that are not in the step may need blocks as well.
        others = load.num_decoding - step.budget.num_decodes
        return 0 if best is None else self._blocks_for(best) + others

    def _worse_than(self, best: RequestState) -> Iterator[tuple[RequestState, int]]:
        """Yield the residents that may go for `best`, worst first, and the blocks freed so far."""
        assert best.rank is not None
        limit = best.rank.evict_key
        if limit is None:
            return
        worse, freed_blocks = [], 0
        for row, live in self.residents.items():
            batch = live.batch  # not a call of `rank_of`: this is most of an eviction
            rank = live.rank if batch is None else batch.rank or live.rank
            assert rank is not None
            key = rank.evict_key
            if key is not None and key > limit and not live.is_moving:
                worse.append((key, row, live))
        for _, _, live in sorted(worse, reverse=True):
            freed_blocks += self.blocks_of(live) + self.growth_of(live)
            yield live, freed_blocks


def _evict_order(live: RequestState) -> tuple[bool, tuple[float, ...], int]:
    return evict_order(rank_of(live), live.row)
