"""Filling a step, lane by lane: decodes, prefills in progress, admissions."""

from heapq import heappop

from scheduler_adapters.planner.step_budget import StepBudget
from scheduler_adapters.policy import Policy, PolicyWrapper, no_rule
from scheduler_adapters.simulator.engine.decode_batch import DecodeBatch, PriorityLevel
from scheduler_adapters.simulator.engine.memory import KvMemory
from scheduler_adapters.simulator.engine.ranked_requests import RankedRequests
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.simulator.engine.state import EngineState
from scheduler_adapters.views import UNLIMITED, StepRule


class StepScheduler:
    """Puts into the next step what ranks, rule, seats and blocks allow."""

    __slots__ = (
        "block_tokens", "has_rule", "headroom", "lanes", "lives", "load", "memory", "pending_rule",
        "policy", "ranks", "residents", "split_lanes", "state", "step", "step_rule",
        "total_blocks", "watermark_blocks",
    )  # fmt: skip

    def __init__(self, state: EngineState, ranks: RankedRequests, memory: KvMemory) -> None:
        self.state = state
        self.policy = state.policy
        self.load = state.load
        self.ranks = ranks
        self.memory = memory
        self.step = memory.step
        self.residents = state.residents
        self.lives = state.lives
        self.lanes = ranks.lanes
        self.headroom = memory.headroom
        self.block_tokens = state.instance.block_tokens
        self.total_blocks = state.instance.kv_blocks
        self.watermark_blocks = state.instance.watermark_blocks
        asked = state.policy
        while isinstance(asked, PolicyWrapper) and type(asked).step_rule is _PASSED_ON:
            asked = asked.policy
        self.step_rule = asked.step_rule
        self.has_rule = type(asked).step_rule is not Policy.step_rule
        self.pending_rule: StepRule | None = None
        """Asked for already, but for a step that is not filled yet."""
        self.split_lanes: list[PriorityLevel] = []
        """Lanes with batches that were split because not all members found room."""
        self._take_rule(UNLIMITED)

    def fill(self, instead: StepRule | None = None) -> None:
        """Fill the step by the policy's rule; by none where the rule would place nothing.

        One function with the loop over the lanes: this runs at every step.
        """
        rule, self.pending_rule = instead or self.pending_rule, None
        if rule is None:
            rule = UNLIMITED
            if self.has_rule:
                try:  # not a call of `ask_rule`: it is asked at every step
                    rule = self.step_rule(self.load)
                except Exception as error:
                    raise no_rule(self.policy, self.load, error) from error
        step = self.step
        if rule is not step.rule:
            self._take_rule(rule)
        budget = step.budget
        budget.begin()
        step.placed = []
        step.chunks = []
        step.is_steady = True
        admission_closed = rule.displace  # which admits by itself
        if admission_closed and self.state.num_waiting:
            self.memory.displace()
        lanes, lives, i = self.lanes, self.lives, 0
        while i < len(lanes):
            lane = lanes[i]
            if lane.count:
                self._place_decodes(lane)
            for _, row in lane.prefills:
                live = lives[row]
                chunk = budget.place_prefill(live.prefill_left)
                if not chunk:
                    break
                step.chunks.append((live, chunk))
            if lane.waiting and not admission_closed:
                admission_closed = self._admit(lane)
            # An eviction may have opened a lane before this one.
            i = (i if lanes[i] is lane else lanes.index(lane)) + 1
        if not (step.placed or step.chunks or instead):
            # A real engine must not stall because of a rule: work that can run does.
            self.fill(_UNLIMITED_OFFLOADING if step.offloads else UNLIMITED)

    def rule_stays(self) -> bool:
        """Ask for the next step's rule; keep it where it differs, so that it is asked for once.

        To be called between two equal steps, where the counts that the policy sees do not change.
        """
        try:
            rule = self.step_rule(self.load)
        except Exception as error:
            raise no_rule(self.policy, self.load, error) from error
        if rule is self.step.rule or rule == self.step.rule:
            return True
        self.pending_rule = rule
        return False

    def _take_rule(self, rule: StepRule) -> None:
        """Join the rule's limits with the engine's own."""
        if not isinstance(rule, StepRule):
            raise no_rule(self.policy, self.load, rule)
        step, instance = self.step, self.state.instance
        step.rule = rule
        step.budget = StepBudget(
            rule,
            max_tokens=instance.max_tokens,
            max_num_seqs=instance.max_num_seqs,
            exceeds_budget=True,
        )
        step.offloads = rule.offload and instance.host is not None

    def _place_decodes(self, lane: PriorityLevel) -> None:
        """Place all decodes of the lane, where budget, cap and blocks allow; else some of them."""
        step, load = self.step, self.load
        growth = 0
        for batch in lane.batches:
            growth += batch.growth[batch.counter % self.block_tokens]
        if load.used_blocks + growth + self.headroom > self.total_blocks:
            if step.budget.takes_decodes():
                self._walk_decodes(lane)
            return
        room = step.budget.place_decodes(lane.count)
        if room == lane.count:
            load.used_blocks += growth
            step.placed += lane.batches
        elif room:
            # There are blocks for all, so also for some.
            step.is_steady = False
            placed = lane.decodes_in_order()[:room]
            load.used_blocks += sum(map(self.memory.growth_of, placed))
            self._place_members(lane, placed)

    def _walk_decodes(self, lane: PriorityLevel) -> None:
        """Place decodes one by one, each taking its block, by eviction where need be."""
        self.step.is_steady = False
        placed: list[RequestState] = []
        for live in lane.decodes_in_order():
            if live.batch is None:  # evicted meanwhile
                continue
            if not self.step.budget.takes_decodes():
                break
            if self.memory.secure_block(live):
                live.placed_step = self.load.step
                placed.append(live)
                self.step.budget.place_decodes(1)
        self._place_members(lane, placed)

    def _place_members(self, lane: PriorityLevel, placed: list[RequestState]) -> None:
        """Place the batches of these decodes, each first split from members that are not placed."""
        members: dict[int, list[RequestState]] = {}
        for live in placed:
            members.setdefault(id(live.batch), []).append(live)
        for batch in list(lane.batches):
            chosen = members.get(id(batch), [])
            if chosen and len(chosen) < batch.count:
                self.split_lanes.append(lane)
                batch = self._split(batch, chosen)
            if chosen:
                self.step.placed.append(batch)

    def rejoin_split_lanes(self) -> None:
        """Merge the batches that were split for the last step and are still ranked alike."""
        while self.split_lanes:
            self._rejoin(self.split_lanes.pop())

    def _rejoin(self, lane: PriorityLevel) -> None:
        alike: dict[tuple[int, float], DecodeBatch] = {}
        for batch in list(lane.batches):
            what = id(batch.rank), batch.ask_at - batch.counter
            first = alike.setdefault(what, batch)
            if first is not batch:
                alike[what] = self.ranks.merge(first, batch)

    def _split(self, batch: DecodeBatch, chosen: list[RequestState]) -> DecodeBatch:
        """Return the batch of the chosen, after the smaller part has left for a new one."""
        moving = chosen
        if 2 * len(chosen) > batch.count:
            rows = {live.row for live in chosen}
            moving = [live for live in batch.members.values() if live.row not in rows]
        part = batch.part(moving)
        if batch.rank is not None:
            self.ranks.watch(part, batch.rank.valid_until_s)
        return part if moving is chosen else batch

    def _admit(self, lane: PriorityLevel) -> bool:
        """Admit waiting requests in order; return whether one did not fit, which ends admission."""
        waiting, lives, step = lane.waiting, self.lives, self.step
        while waiting:
            _, row, version = waiting[0]
            live = lives[row]
            if live.version != version or not live.is_waiting:
                heappop(waiting)
            elif self._fits(live):
                heappop(waiting)
                self.memory.admit(live)
                if not live.is_moving:
                    step.chunks.append((live, step.budget.place_prefill(live.prefill_left)))
            else:
                return True
        return False

    def _fits(self, live: RequestState) -> bool:
        budget = self.step.budget
        if not live.stored_blocks and not budget.chunk(live.context):
            return False
        if not budget.admits(len(self.residents)):
            return False
        blocks = -(-live.context // self.block_tokens)
        if live.stored_blocks:
            return not live.is_moving and self._leaves_room(blocks)
        return self.load.used_blocks + blocks + self.watermark_blocks <= self.total_blocks

    def _leaves_room(self, blocks: int) -> bool:
        """Return whether every decode finds a block when a copy back has taken `blocks`.

        Decodes cannot evict what is being copied, so without this two requests may for ever drive
        each other out.
        """
        growth = sum(
            batch.grows()
            for lane in self.lanes
            for batch in lane.batches
            if batch not in self.step.placed
        )
        reserve = max(self.watermark_blocks, self.headroom)
        return self.load.used_blocks + blocks + growth + reserve <= self.total_blocks


_UNLIMITED_OFFLOADING = StepRule(offload=True)
_PASSED_ON = PolicyWrapper.step_rule
