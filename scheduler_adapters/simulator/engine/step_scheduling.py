"""Filling a step, level by level: decodes, prefills in progress, admissions."""

from heapq import heappop

from scheduler_adapters.policy import Policy, PolicyWrapper, ask_rule
from scheduler_adapters.simulator.engine.memory import KvMemory
from scheduler_adapters.simulator.engine.request_state import (
    DecodeBatch,
    PriorityLevel,
    RequestState,
)
from scheduler_adapters.views import UNLIMITED, StepRule


class StepScheduler:
    """Puts into the next step what ranks, rule, seats and blocks allow."""

    def __init__(self, policy: Policy, memory: KvMemory) -> None:
        self.policy = policy
        self.load = memory.load
        self.memory = memory
        self.ranked = memory.ranked
        self.step = memory.step
        wrapped = policy
        while isinstance(wrapped, PolicyWrapper) and type(wrapped).step_rule is _PASSED_ON:
            wrapped = wrapped.policy
        is_fixed = type(wrapped).step_rule is Policy.step_rule
        self.fixed_rule = ask_rule(policy, self.load) if is_fixed else None
        """The rule of all steps; None if the policy computes one for each step."""
        self.pending_rule: StepRule | None = None
        """The rule of a step that is not filled yet."""
        self.split_levels: list[PriorityLevel] = []
        """Levels with batches that were split, as there was no room for all members."""

    def fill(self, instead: StepRule | None = None) -> None:
        """Fill the step by the policy's rule, or by none where the rule would place nothing.

        One function with the loop over the levels, as it runs at every step.
        """
        step = self.step
        rule = instead or self.pending_rule or self.fixed_rule or ask_rule(self.policy, self.load)
        self.pending_rule = None
        if rule is not step.rule:
            step.set_rule(rule)
        budget = step.budget
        budget.begin()
        step.batches = []
        step.chunks = []
        step.is_steady = True
        if (shares := self.ranked.shares) is not None and shares.is_contended:
            shares.refresh()
        admission_closed = rule.displace  # which admits by itself
        if admission_closed and self.ranked.num_waiting:
            self.memory.displace()
        levels, requests, i = self.ranked.levels, self.ranked.requests, 0
        while i < len(levels):
            level = levels[i]
            if level.count:
                self._place_decodes(level)
            for _, row in level.prefills:
                request = requests[row]
                if not (chunk := budget.place_prefill(request.prefill_left)):
                    break
                step.chunks.append((request, chunk))
            if level.waiting and not admission_closed:
                admission_closed = self._admit(level)
            # An eviction may have opened a level before this one.
            i = (i if levels[i] is level else levels.index(level)) + 1
        if not (step.batches or step.chunks or instead):
            # A real engine must not stall because of a rule: work that can run does.
            self.fill(_UNLIMITED_OFFLOADING if step.offloads else UNLIMITED)

    def rule_stays(self) -> bool:
        """Return whether the next step has the rule of the last one; keep another one for it.

        To be called between two equal steps, where the counts that the policy sees do not change.
        """
        rule = self.fixed_rule or ask_rule(self.policy, self.load)
        if rule is self.step.rule or rule == self.step.rule:
            return True
        self.pending_rule = rule
        return False

    def _place_decodes(self, level: PriorityLevel) -> None:
        """Place all decodes of the level, where budget, cap and blocks allow; else some of them."""
        step, load = self.step, self.load
        growth = 0
        for batch in level.batches:
            growth += batch.growth[batch.counter % batch.block_tokens]
        if load.used_blocks + growth > self.memory.decode_blocks:
            if step.budget.takes_decodes():
                self._walk_decodes(level)
            return
        if (room := step.budget.place_decodes(level.count)) == level.count:
            load.used_blocks += growth
            step.batches += level.batches
        elif room:
            # There are blocks for all, so also for some.
            step.is_steady = False
            placed = level.decodes_in_order()[:room]
            load.used_blocks += sum(map(self.memory.growth_of, placed))
            self._place_members(level, placed)

    def _walk_decodes(self, level: PriorityLevel) -> None:
        """Place decodes one by one, each taking its block, by eviction if necessary."""
        step = self.step
        step.is_steady = False
        placed: list[RequestState] = []
        for request in level.decodes_in_order():
            if request.batch is None:  # evicted meanwhile
                continue
            if not step.budget.takes_decodes():
                break
            if self.memory.secure_block(request):
                step.walked.add(request.row)
                placed.append(request)
                step.budget.place_decodes(1)
        step.walked.clear()
        self._place_members(level, placed)

    def _place_members(self, level: PriorityLevel, placed: list[RequestState]) -> None:
        """Place the batches of these decodes, each split from its members that are not placed."""
        members: dict[int, list[RequestState]] = {}
        for request in placed:
            members.setdefault(id(request.batch), []).append(request)
        for batch in list(level.batches):
            chosen = members.get(id(batch), [])
            if chosen and len(chosen) < batch.count:
                self.split_levels.append(level)
                batch = self._split(batch, chosen)
            if chosen:
                self.step.batches.append(batch)

    def rejoin_split_levels(self) -> None:
        """Merge the batches that were split for the last step and are still ranked alike."""
        while self.split_levels:
            alike: dict[tuple[int, float], DecodeBatch] = {}
            for batch in list(self.split_levels.pop().batches):
                what = id(batch.rank), batch.rank_until - batch.counter
                if (first := alike.setdefault(what, batch)) is not batch:
                    alike[what] = self.ranked.merge(first, batch)

    def _split(self, batch: DecodeBatch, chosen: list[RequestState]) -> DecodeBatch:
        """Return the batch of the chosen, after the smaller part has left for a new one."""
        moving = chosen
        if 2 * len(chosen) > batch.count:
            rows = {request.row for request in chosen}
            moving = [request for request in batch.members.values() if request.row not in rows]
        part = batch.part(moving)
        if batch.rank is not None:
            self.ranked.watch(part, batch.rank.valid_until_s)
        return part if moving is chosen else batch

    def _admit(self, level: PriorityLevel) -> bool:
        """Admit waiting requests in order; return whether one did not fit, which ends admission."""
        waiting, requests, step = level.waiting, self.ranked.requests, self.step
        shares = self.ranked.shares
        while waiting:
            self.ranked.end_by_starts()
            _, row, version = waiting[0]
            request = requests[row]
            if request.version != version or not request.is_waiting:
                heappop(waiting)
                continue
            if shares is not None:
                request = self.ranked.next_of(level, shares)
            if not self._fits(request):
                return True
            if shares is None:
                heappop(waiting)
            self.memory.admit(request)
            if not request.is_moving:
                step.chunks.append((request, step.budget.place_prefill(request.prefill_left)))
        return False

    def _fits(self, request: RequestState) -> bool:
        budget, memory = self.step.budget, self.memory
        tokens = request.context - request.view.cached_tokens
        if not request.stored_blocks and not budget.chunk(tokens):
            return False
        if not budget.admits(len(memory.residents)):
            return False
        blocks = -(-request.context // self.ranked.block_tokens)
        if not request.stored_blocks:
            return self.load.used_blocks + blocks <= memory.admission_blocks
        # Decodes cannot evict what is being copied back: without blocks for their next tokens two
        # requests might evict each other for ever.
        for level in self.ranked.levels:
            for batch in level.batches:
                if batch not in self.step.batches:
                    blocks += batch.grows()
        has_room = self.load.used_blocks + blocks <= min(
            memory.admission_blocks, memory.decode_blocks
        )
        return has_room and not request.is_moving


_UNLIMITED_OFFLOADING = StepRule(offload=True)
_PASSED_ON = PolicyWrapper.step_rule
