"""Filling a step, lane by lane: decodes, prefills in progress, admissions."""

from __future__ import annotations

from heapq import heappop

from scheduler_adapters.planner.step_budget import StepBudget
from scheduler_adapters.policy import Policy, no_rule
from scheduler_adapters.simulator.engine.cohort import Cohort, Lane, Live
from scheduler_adapters.simulator.engine.eviction import Eviction
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.views import UNLIMITED, StepRule


class Filling(Eviction):
    """The fourth layer of the engine: what goes into the next step."""

    __slots__ = (
        "admission_closed",
        "has_rule",
        "pending_rule",
        "rule",
        "split_lanes",
        "watermark_blocks",
    )

    def __init__(self, policy: Policy, instance: Instance) -> None:
        super().__init__(policy, instance)
        self.has_rule = type(policy).step_rule is not Policy.step_rule
        self.pending_rule: StepRule | None = None
        """Asked for already, but for a step that is not filled yet."""
        self.total_blocks = instance.kv_blocks
        self.watermark_blocks = instance.watermark_blocks
        self.headroom = instance.decode_headroom_blocks
        self.split_lanes: list[Lane] = []
        """Lanes with cohorts that were split because not all members found room."""
        self._take_rule(UNLIMITED)

    def _fill(self) -> None:
        rule, self.pending_rule = self.pending_rule, None
        if rule is None:
            rule = UNLIMITED
            if self.has_rule:
                self.load.used_blocks = self.used_blocks
                try:  # not a call of `ask_rule`: it is asked at every step
                    rule = self.policy.step_rule(self.load)
                except Exception as error:
                    raise no_rule(self.policy, self.load, error) from error
        self._fill_by(rule)
        if not (self.placed or self.chunks):
            # A real engine must not stall because of a rule: work that can run does.
            self._fill_by(_UNLIMITED_OFFLOADING if self.offloads else UNLIMITED)

    def _take_rule(self, rule: StepRule) -> None:
        """Join the rule's limits with the engine's own."""
        if not isinstance(rule, StepRule):
            raise no_rule(self.policy, self.load, rule)
        instance = self.instance
        self.rule = rule
        self.budget = StepBudget(
            rule,
            max_tokens=instance.max_tokens,
            max_num_seqs=instance.max_num_seqs,
            exceeds_budget=True,
        )
        self.offloads = rule.offload and instance.host is not None

    def _fill_by(self, rule: StepRule) -> None:
        if rule is not self.rule:
            self._take_rule(rule)
        budget = self.budget
        budget.begin()
        self.placed: list[Cohort] = []
        self.chunks: list[tuple[Live, int]] = []
        self.admission_closed = False
        self.is_steady = True
        if rule.displace and self.num_waiting:
            self._displace()
        lanes, i = self.lanes, 0
        while i < len(lanes):
            lane = lanes[i]
            if lane.count and budget.takes_decodes():
                self._place_decodes(lane)
            for _, row in lane.prefills:
                if not self._prefill(self.lives[row]):
                    break
            if lane.waiting and not self.admission_closed and not rule.displace:
                self._admit(lane)
            # An eviction may have opened a lane before this one.
            i = (i if lanes[i] is lane else lanes.index(lane)) + 1

    def _place_decodes(self, lane: Lane) -> None:
        """All decodes of the lane, where budget, cap and blocks allow; else one by one."""
        count = lane.count
        growth = 0
        for cohort in lane.cohorts:
            growth += cohort.growth[cohort.counter % self.block_tokens]
        if self.used_blocks + growth + self.headroom > self.total_blocks:
            self._walk_decodes(lane)
        elif count > self.budget.room_for_decodes():
            self._place_some_decodes(lane)
        else:
            self.used_blocks += growth
            self.placed += lane.cohorts
            self.budget.add_decodes(count)

    def _place_some_decodes(self, lane: Lane) -> None:
        """As many as budget and cap allow; there are blocks for all."""
        self.is_steady = False
        room = int(self.budget.room_for_decodes())
        placed = lane.decodes_in_order()[:room]
        self.used_blocks += sum(map(self._growth_of, placed))
        self.budget.add_decodes(room)
        self._place_members(lane, placed)

    def _walk_decodes(self, lane: Lane) -> None:
        """One by one, each taking its block, by eviction where need be."""
        self.is_steady = False
        placed: list[Live] = []
        for live in lane.decodes_in_order():
            if live.cohort is None:  # evicted meanwhile
                continue
            if not self.budget.takes_decodes():
                break
            if self._secure_block(live):
                live.placed_step = self.load.step
                placed.append(live)
                self.budget.add_decodes(1)
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
        """The cohort of the chosen, after the smaller part has left for a new one."""
        moving = chosen
        if 2 * len(chosen) > cohort.count:
            rows = {live.row for live in chosen}
            moving = [live for live in cohort.members.values() if live.row not in rows]
        part = cohort.part(moving)
        if cohort.rank is not None:
            self._watch(part, cohort.rank.valid_until_s)
        return part if moving is chosen else cohort

    def _prefill(self, live: Live) -> bool:
        """Place a chunk of a resident's prefill; False where the step takes none."""
        chunk = self.budget.chunk(live.prefill_left)
        if chunk:
            self.budget.add_prefill(chunk)
            self.chunks.append((live, chunk))
        return chunk > 0

    def _admit(self, lane: Lane) -> None:
        waiting, lives = lane.waiting, self.lives
        while waiting:
            _, row, version = waiting[0]
            live = lives[row]
            if live.version != version or not live.is_waiting:
                heappop(waiting)
            elif self._fits(live):
                heappop(waiting)
                self._admit_one(live)
                if not live.is_moving:
                    self._prefill(live)
            else:
                self.admission_closed = True
                return

    def _fits(self, live: Live) -> bool:
        blocks = -(-live.context // self.block_tokens)
        if not self.budget.admits(len(self.residents)):
            return False
        if live.host_blocks:
            return not live.is_moving and self._leaves_room(blocks)
        return (
            self.used_blocks + blocks + self.watermark_blocks <= self.total_blocks
            and self.budget.chunk(live.context) > 0
        )

    def _leaves_room(self, blocks: int) -> bool:
        """Whether every decode still finds a block when a copy back has taken `blocks`.

        Decodes cannot evict what is being copied, so without this two requests may for ever drive
        each other out.
        """
        growth = sum(
            cohort.grows()
            for lane in self.lanes
            for cohort in lane.cohorts
            if cohort not in self.placed
        )
        reserve = max(self.watermark_blocks, self.headroom)
        return self.used_blocks + blocks + growth + reserve <= self.total_blocks


_UNLIMITED_OFFLOADING = StepRule(offload=True)
