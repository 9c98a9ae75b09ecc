"""The KV memory of one instance: its residents, admission, eviction, displacement."""

from collections.abc import Iterator

from lengthwise.errors import SchedulingError
from scheduler_adapters.planner.step_budget import evict_order, fewest_victims
from scheduler_adapters.simulator.engine.observed_events import ObservedEvents
from scheduler_adapters.simulator.engine.offload import StoredBlocks
from scheduler_adapters.simulator.engine.ranked_requests import RankedRequests
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.simulator.engine.step_contents import StepContents
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.views import LoadView

MAX_EVICTIONS_PER_REQUEST = 10
"""Limit without any token in between; a greater number is a loop."""


class KvMemory:
    """Blocks of the residents. Evictions are rare, so they walk the residents one by one."""

    # Slots, as every step reads them: 4% of the time of a run.
    __slots__ = (
        "admission_blocks", "decode_blocks", "events", "evictions_without_token", "held_blocks",
        "instance", "load", "num_prefilling", "num_returning", "prefixes", "ranked", "residents",
        "step", "stored",
    )  # fmt: skip

    def __init__(
        self,
        instance: Instance,
        load: LoadView,
        ranked: RankedRequests,
        step: StepContents,
        events: ObservedEvents,
        *,
        keeps_prefixes: bool,
    ) -> None:
        self.instance = instance
        self.load = load
        self.ranked = ranked
        self.step = step
        self.events = events
        self.stored = StoredBlocks(instance, load)
        # Computed once, as both are read at every step.
        self.admission_blocks = instance.kv_blocks - instance.watermark_blocks
        """Blocks that admissions may fill."""
        self.decode_blocks = instance.kv_blocks - instance.decode_headroom_blocks
        """Blocks that decodes may fill."""
        self.prefixes = FreedPrefixes() if keeps_prefixes else None
        self.residents: dict[int, RequestState] = {}
        self.num_prefilling = 0
        self.num_returning = 0
        """Residents that are being copied back, and so wait as well."""
        self.held_blocks = 0
        """Used blocks of requests that are elsewhere: KV that is copied away, or to be copied here.
        """
        self.evictions_without_token = 0

    def update_load(self) -> None:
        """Bring the counts of the policy's view up to date."""
        load = self.load
        load.num_waiting = self.ranked.num_waiting
        load.num_prefilling = self.num_prefilling
        load.num_decoding = len(self.residents) - self.num_prefilling - self.num_returning

    def admit(self, request: RequestState) -> None:
        """Give a request its seat and its blocks, to be computed or copied back."""
        load, step = self.load, self.step
        blocks = -(-request.context // self.instance.block_tokens)
        step.is_steady = False  # the next step may admit more, whatever stopped this one
        step.budget.num_admissions += 1
        load.num_started += 1
        request.view.admission_number = load.num_started
        request.is_waiting = False
        if (shares := self.ranked.shares) is not None:
            shares.starts(request.sync_view(), lambda: request.generated_tokens)
        self.residents[request.row] = request
        if request.stored_blocks:
            load.used_blocks += blocks if request.prefill_left else request.stored_blocks
            self.num_returning += 1
            self.stored.reload(request)
        else:
            kept = request.view.cached_tokens
            if self.prefixes is not None:
                kept = max(kept, self.prefixes.kept(request, load, self.instance.block_tokens))
            request.kept_tokens, request.prefill_left = kept, request.context - kept
            load.used_blocks += blocks
            self.ranked.count_waiting(request, -1)
            self.num_prefilling += 1
        for tell in self.events.admitted:
            tell(request.sync_view(), load.now_s)

    def blocks_of(self, request: RequestState) -> int:
        """Return the blocks of a resident that is not in the step yet."""
        if request.is_moving and not request.prefill_left:
            return request.stored_blocks
        return self.instance.blocks(request.now_context - (request.batch is not None))

    def growth_of(self, request: RequestState) -> int:
        """Return the blocks that the next token of a resident needs: 1 or 0."""
        batch = request.batch
        return batch is not None and (request.offset + batch.counter - 1) % batch.block_tokens == 0

    def free(self, blocks: int) -> None:
        """Free blocks of a request that leaves the instance."""
        self.load.used_blocks -= blocks
        if self.prefixes is not None:
            self.prefixes.freed_blocks += blocks

    def remove(self, request: RequestState) -> None:
        """Free the seat and the blocks of an unfinished request that leaves."""
        if self.ranked.shares is not None:
            self.ranked.shares.leaves(request.view)
        if request.is_waiting or request.is_moving:
            self.ranked.count_waiting(request, -1)
        if not request.is_waiting:
            self.free(self.blocks_of(request))
            del self.residents[request.row]
            self.num_returning -= request.is_moving
            if not request.is_moving:
                self.num_prefilling -= request.prefill_left > 0
                self.ranked.unplace(request)

    def hold(self, blocks: int) -> None:
        """Hold blocks for a request that is elsewhere; below 0 to free them."""
        self.held_blocks += blocks
        self.load.used_blocks += blocks

    def unreserve(self, request: RequestState) -> None:
        """Free the blocks that were reserved for a request."""
        self.hold(-request.reserved_blocks)
        request.reserved_blocks = 0

    def land(self) -> None:
        """End the copies that have landed; requests that are back on the device run again."""
        back = self.stored.land()
        for request in back:
            self.num_returning -= 1
            self.ranked.count_waiting(request, -1)
            self.num_prefilling += request.prefill_left > 0
        self.update_load()
        for request in back:
            self.ranked.ask(request)
            self.ranked.place(request)

    def secure_block(self, request: RequestState) -> bool:
        """Take the block for the next token of a decode, by eviction if necessary."""
        needed, instance, load = self.growth_of(request), self.instance, self.load
        while instance.kv_blocks - load.used_blocks < max(needed, instance.decode_headroom_blocks):
            last, victim = evict_order(request.current_rank, request.row), request
            for other in self.residents.values():
                place = evict_order(other.current_rank, other.row)
                is_evictable = place[0] and not other.is_moving
                if place > last and is_evictable and not self.step.contains(other):
                    last, victim = place, other
            self._evict(victim)
            if victim is request:
                return False
        load.used_blocks += needed
        return True

    def _evict(self, request: RequestState) -> None:
        load, blocks = self.load, self.blocks_of(request)
        self.step.is_steady = False
        if self.prefixes is not None:
            self.prefixes.evicted(request, blocks)
        load.used_blocks -= blocks
        if self.step.offloads:
            self.stored.offload(request, self.instance.blocks(request.computed_tokens))
        if request.batch is None:
            self.num_prefilling -= 1
        self.ranked.unplace(request)
        request.is_waiting = True
        request.evicted_s = load.now_s
        request.view.preemptions += 1
        self.ranked.record.preemptions[request.row] += 1
        del self.residents[request.row]
        self.ranked.count_waiting(request)
        self.evictions_without_token += 1
        self.refuse_endless_eviction(request.view.request_id)
        for tell in self.events.evicted:
            tell(request.sync_view(), load.now_s)
        if self.ranked.shares is not None:
            self.ranked.shares.waits(request.sync_view())
        self.ranked.wait_again(request)

    def refuse_endless_eviction(self, request_id: str) -> None:
        """Raise `SchedulingError` after too many evictions without a token; name the last."""
        unfinished = len(self.residents) + self.ranked.num_waiting - self.num_returning
        if self.evictions_without_token > MAX_EVICTIONS_PER_REQUEST * unfinished:
            raise SchedulingError(
                f"policy {self.ranked.policy.name!r} evicts without end at {self.load.now_s} s, "
                f"last request {request_id!r}; let a request run before it can be evicted"
            )

    def displace(self) -> None:
        """Admit the best waiting requests, evicting worse residents if that makes enough room."""
        while (best := self.ranked.best_waiting()) is not None:
            if best.evicted_s == self.load.now_s:
                self.step.is_steady = False  # it may displace others in the next step
                return
            if best.is_moving or not self._make_room(best):
                return
            self.admit(best)
            self.ranked.place(best)

    def _make_room(self, best: RequestState) -> bool:
        """Evict the fewest worst residents that make room for `best`; none if impossible."""
        budget = self.step.budget
        if budget.num_admissions >= budget.max_admissions:
            return False
        room = self.instance.kv_blocks - self.load.used_blocks - self._blocks_for(best)
        for level in self.ranked.levels:
            room -= sum([batch.grows() for batch in level.batches])
        seats = budget.seats - len(self.residents) - 1
        if room >= 0 and seats >= 0:  # the frequent case
            return True
        victims = fewest_victims(room, seats, self._worse_than(best))
        for victim in victims or ():
            self._evict(victim)
        return victims is not None

    def _blocks_for(self, best: RequestState) -> int:
        """Return the blocks for a waiting request and its next token."""
        if not best.stored_blocks:
            return self.instance.blocks(best.context + 1)
        blocks = self.instance.blocks(best.context + (best.prefill_left > 0))
        return blocks + self.instance.decode_headroom_blocks

    def blocks_awaited(self) -> int:
        """Return how many free blocks keep the best waiting request from displacing a resident.

        0 where none displaces. It has no seat; once blocks are missing as well, it may evict.
        """
        step, load = self.step, self.load
        if len(self.residents) < step.budget.seats:
            return 0
        best = self.ranked.best_waiting()
        # Decodes that are not in the step may need blocks as well.
        others = load.num_decoding - step.budget.num_decodes
        return 0 if best is None else self._blocks_for(best) + others

    def _worse_than(self, best: RequestState) -> Iterator[tuple[RequestState, int]]:
        """Yield the residents that `best` may evict, worst first, and the blocks freed so far."""
        assert best.rank is not None
        if (limit := best.rank.evict_key) is None:
            return
        worse, freed_blocks = [], 0
        for row, request in self.residents.items():
            # Not `current_rank`: this loop is most of an eviction.
            batch = request.batch
            rank = request.rank if batch is None else batch.rank or request.rank
            assert rank is not None
            key = rank.evict_key
            if key is not None and key > limit and not request.is_moving:
                worse.append((key, row, request))
        for _, _, request in sorted(worse, reverse=True):
            freed_blocks += self.blocks_of(request) + self.growth_of(request)
            yield request, freed_blocks


class FreedPrefixes:
    """KV of preempted requests in blocks that are free: prefix caching, vLLM's default.

    Freed blocks keep their content until they are taken, oldest first and the end of a request
    before its start. A preempted request prefills only what was taken by then. Prefixes shared
    between requests are not modelled.
    """

    def __init__(self) -> None:
        self.freed_blocks = 0
        self.evictions: dict[int, tuple[int, int, int]] = {}
        """(blocks, computed tokens, `freed_blocks` before) at the eviction, by row."""

    def evicted(self, request: RequestState, blocks: int) -> None:
        """Note the computed tokens of an evicted request; during a prefill the blocks hold more."""
        computed_tokens = request.now_context - request.prefill_left
        self.evictions[request.row] = blocks, computed_tokens, self.freed_blocks
        self.freed_blocks += blocks

    def kept(self, request: RequestState, load: LoadView, block_tokens: int) -> int:
        """Return the tokens of an admitted request in whole blocks that still exist.

        The last token is computed again.
        """
        blocks, computed_tokens, freed_before = self.evictions.pop(request.row, (0, 0, 0))
        # Blocks handed out since the eviction beyond those that were free then.
        taken = load.used_blocks + self.freed_blocks - load.total_blocks - freed_before
        whole_blocks = min(computed_tokens, request.context - 1) // block_tokens
        return max(0, min(blocks - max(0, taken), whole_blocks)) * block_tokens
