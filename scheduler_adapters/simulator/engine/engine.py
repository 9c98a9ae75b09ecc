"""One simulated instance that is driven from outside: requests in, time forward, requests out.

Decodes that advance together form a batch (`batch.py`), so a step costs the same for two of them
as for two hundred; while nothing happens to anybody, steps are repeated without being filled anew
(`stepping.py`). The rules of a step stand in `planner/step_budget.py` and, in the plainest form, in
`tests/scheduler_adapters/simulator/reference.py`.
"""

import gc
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from math import inf

import numpy as np

from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine.memory import KvMemory
from scheduler_adapters.simulator.engine.offload import StoredBlocks
from scheduler_adapters.simulator.engine.ranked_requests import RankedRequests
from scheduler_adapters.simulator.engine.request_state import (
    GONE,
    Carried,
    RequestState,
    SimulatedRequest,
)
from scheduler_adapters.simulator.engine.state import EngineState
from scheduler_adapters.simulator.engine.step_execution import StepExecutor
from scheduler_adapters.simulator.engine.step_scheduling import StepScheduler
from scheduler_adapters.simulator.engine.vllm_habits import VllmHabits
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.timeline.columns import none_for_nan
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import InstanceView, RequestView
from scheduler_adapters.workload.requests import Requests


class Engine:
    """Serves requests under a policy on one instance, in virtual time.

    The clock belongs to the caller: `submit` requests, also such as arrive later, and `advance`.
    Equal calls give equal bytes, in however many pieces the time passes.

    Args:
        vllm: whether steps are planned ahead and preempted prefixes kept, as vLLM does.
        observers: are told what happens, in order (`timeline/observer.py`).
        instance_id: of the views that placements see.
    """

    __slots__ = (
        "earlier_tokens", "filler", "habits", "inbox", "instance", "is_stalled", "levels", "load",
        "memory", "own_view", "queued", "ranks", "record", "requests", "runner", "state", "step",
        "stored",
    )  # fmt: skip

    def __init__(
        self,
        policy: Policy,
        instance: Instance,
        *,
        vllm: bool = False,
        observers: Iterable[EngineObserver] = (),
        instance_id: int = 0,
    ) -> None:
        instance.check(policy)
        state = self.state = EngineState(policy, instance, observers)
        self.habits = habits = VllmHabits() if vllm else None
        self.ranks = RankedRequests(state)
        self.stored = StoredBlocks(state, self.ranks)
        self.memory = KvMemory(state, self.ranks, self.stored, habits)
        self.filler = StepScheduler(state, self.ranks, self.memory)
        self.runner = StepExecutor(state, self.filler)
        self.load, self.instance, self.requests = state.load, instance, state.lives
        self.record, self.step, self.levels = state.record, self.filler.step, self.ranks.lanes
        self.queued = state.events.queued
        self.inbox: deque[RequestState] = deque()
        """Requests that have not joined the queue yet, by (time of joining, row)."""
        self.own_view = InstanceView(
            instance_id=instance_id,
            now_s=0.0,
            used_blocks=0,
            total_blocks=instance.kv_blocks,
            block_tokens=instance.block_tokens,
            decodes=self.decodes,
        )
        self.earlier_tokens: dict[int, int] = {}
        """Tokens that came out in the instances before, by row."""
        self.is_stalled = False
        """Whether nothing can run before the next arrival or landing."""

    def observe(self, observer: EngineObserver) -> None:
        """Tell an observer from now on."""
        self.filler.step.repeats = False
        self.state.events.add(observer)

    def submit_all(self, requests: Requests) -> None:
        """Hand over requests that arrive in this order; each has the next row of the timeline."""
        state = self.state
        lives = _lives(requests, first_row=len(state.lives))
        state.lives += lives
        state.record.add_rows(len(lives))
        rejected = state.instance.cannot_hold(requests.prompt_tokens, requests.output_tokens)
        for row in np.flatnonzero((requests.score_delay_s > 0) & ~rejected).tolist():
            self.ranks.delay_score(lives[row], float(requests.score_delay_s[row]))
        if rejected.any():
            for live, is_rejected in zip(lives, rejected.tolist(), strict=True):
                live.is_gone = is_rejected
            lives = [live for live in lives if not live.is_gone]
        self._expect(lives)

    def submit(self, request: SimulatedRequest, *, carried: Carried | None = None) -> bool:
        """Hand over a request, which arrives at its `arrival_s` or, if that has passed, now.

        Returns False, and rejects it, if the KV memory cannot hold it even alone. With `carried`
        it goes on where it was, from `available_s` on, as soon as there are blocks for the KV it
        brings. The timeline has those of its tokens that come out here.
        """
        state, row = self.state, len(self.state.lives)
        live = RequestState(row, request.view(row), request.output_tokens, request.reasoning_tokens)
        state.lives.append(live)
        state.record.add_rows(1)
        if state.instance.cannot_hold(request.prompt_tokens, request.output_tokens):
            live.is_gone = True
            return False
        if request.score_delay_s:
            self.ranks.delay_score(live, request.score_delay_s)
        if carried is not None:
            self._resume(live, carried)
        self._expect([live])
        return True

    def _resume(self, live: RequestState, carried: Carried) -> None:
        """Give a request its progress in the instances before."""
        view, record = live.view, self.state.record
        live.joins_s = max(live.joins_s, carried.available_s)
        live.context += carried.generated_tokens
        live.last_token_s = carried.last_token_s
        view.preemptions = record.preemptions[live.row] = carried.preemptions
        view.queue, view.queue_entered_s = carried.queue, carried.queue_entered_s
        live.other_token_s = carried.token_s
        self.earlier_tokens[live.row] = len(carried.token_s)
        if carried.scheduled_s is not None:
            record.scheduled_s[live.row] = carried.scheduled_s
        if carried.token_s:
            record.first_token_s[live.row] = carried.token_s[0]
        live.reserved_blocks = carried.reserved_blocks
        if carried.kv_tokens:
            self.stored.bring(live, self.state.instance.blocks(carried.kv_tokens))
            live.prefill_left = live.context - carried.kv_tokens
            if live.prefill_left == 1 and carried.generated_tokens:
                live.prefill_left = 0  # the newest token's KV is computed by its next step

    def _expect(self, lives: Iterable[RequestState]) -> None:
        """Put requests into the inbox, which mostly is at its end."""
        inbox = self.inbox
        for live in lives:
            if not inbox or inbox[-1].joins_s <= live.joins_s:
                inbox.append(live)
                continue
            at = len(inbox) - 1
            while at and inbox[at - 1].joins_s > live.joins_s:
                at -= 1
            inbox.insert(at, live)
        self._look_at_inbox()

    def _look_at_inbox(self) -> None:
        self.state.next_arrival_s = self.inbox[0].joins_s if self.inbox else inf

    def withdraw(self, live: RequestState, *, holds_blocks: bool = False) -> Carried:
        """Remove an unfinished request with its progress, and with its KV if it has any.

        With `holds_blocks` its blocks stay reserved until they are given to `release`, as its KV
        is still to be copied.
        """
        state, used_blocks = self.state, self.state.load.used_blocks
        kv_tokens = live.computed_tokens if not live.is_waiting or live.stored_blocks else 0
        if live.rank is None:
            self.inbox.remove(live)
            self._look_at_inbox()
            self._unreserve(live)
            self.stored.free(live)
        else:
            self._release(live)
        live.version += 1
        live.is_gone = True
        self.is_stalled = self.filler.step.repeats = False
        held_blocks = used_blocks - state.load.used_blocks if holds_blocks else 0
        state.load.used_blocks += held_blocks
        state.held_blocks += held_blocks
        state.count()
        view = live.sync_view()
        for tell in state.events.withdrawn:
            tell(view, state.load.now_s)
        state.lives[live.row] = GONE
        scheduled_s = state.record.scheduled_s[live.row]
        return Carried(
            available_s=state.load.now_s,
            generated_tokens=view.generated_tokens,
            thinking_tokens=view.thinking_tokens,
            kv_tokens=kv_tokens,
            preemptions=view.preemptions,
            scheduled_s=None if scheduled_s != scheduled_s else scheduled_s,
            token_s=tuple(self.token_s(live)),
            last_token_s=live.last_token_s,
            queue=view.queue,
            queue_entered_s=view.queue_entered_s,
            held_blocks=held_blocks,
        )

    def token_s(self, live: RequestState) -> list[float]:
        """Return when the tokens of a request came out so far, here and in instances before."""
        record, batch = self.state.record, live.batch
        token_s = [*live.other_token_s, *record.token_s(live.run_ticks)]
        if batch is not None and batch.counter > live.joined:
            token_s += record.token_s(batch.ticks_of(live))
        return token_s

    def reserve(self, blocks: int) -> bool:
        """Keep free blocks for a request whose KV is being copied here; returns whether there are
        so many. Give them back by `release`, or with the request as `Carried.reserved_blocks`.
        """
        state, memory = self.state, self.memory
        spare = max(state.instance.watermark_blocks, memory.headroom)
        if blocks and state.load.used_blocks + blocks + spare > memory.total_blocks:
            return False
        state.held_blocks += blocks
        state.load.used_blocks += blocks
        self.filler.step.repeats = False
        return True

    def release(self, blocks: int, now_s: float) -> None:
        """Give back blocks that a request has held until now which left, or did not come."""
        state = self.state
        state.held_blocks -= blocks
        state.load.used_blocks -= blocks
        self.filler.step.repeats = False
        if self.is_stalled:
            self.is_stalled = False
            state.load.now_s = max(state.load.now_s, now_s)

    def _unreserve(self, live: RequestState) -> None:
        """Free the blocks that were kept for a request."""
        self.state.held_blocks -= live.reserved_blocks
        self.state.load.used_blocks -= live.reserved_blocks
        live.reserved_blocks = 0

    def _release(self, live: RequestState) -> None:
        """Free the seat and the blocks of a request that leaves."""
        state = self.state
        if live.is_waiting or live.is_moving:
            state.num_waiting -= 1
            state.waiting_tokens -= live.view.prompt_tokens
        if not live.is_waiting:
            blocks = self.memory.blocks_of(live)
            state.load.used_blocks -= blocks
            if self.habits is not None:
                self.habits.freed(blocks)
            del state.residents[live.row]
            state.num_returning -= live.is_moving
            if not live.is_moving:
                state.num_prefilling -= live.prefill_left > 0
                self.ranks.unplace(live)
        if live.stored_blocks:
            self.stored.free(live)

    def advance(self, until_s: float) -> float:
        """Run every step that starts before `until_s`; return when the next one would, or inf.

        A step may end after `until_s`. What is submitted then with an earlier arrival takes part
        in the step after that, as it would have. An observer may `stop` the run.

        Raises:
            InvalidDecision: the policy raised, or ranked with NaN.
            SchedulingError: requests evict each other for ever.
        """
        state, load, step = self.state, self.state.load, self.filler.step
        residents, stored = state.residents, self.stored
        filler, runner, ranks, timers = self.filler, self.runner, self.ranks, self.ranks.timers
        state.until_s = until_s
        while True:
            start_s = load.now_s
            if not state.num_waiting and not residents:
                start_s = max(start_s, state.next_arrival_s)
            elif self.is_stalled:
                wakes_s = min(state.next_arrival_s, ranks.next_score_s)
                start_s = max(start_s, min(stored.next_landing_s, wakes_s))
                self.is_stalled = start_s >= state.until_s
                if self.is_stalled and state.until_s < inf:
                    # Whatever the caller does about it is done then, not earlier.
                    load.now_s = max(load.now_s, state.until_s)
                elif self.habits is not None:
                    self.habits.awake_since_s = start_s
            if start_s >= state.until_s:
                return start_s
            load.now_s = start_s
            if stored.next_landing_s <= start_s:
                step.repeats = False
                stored.land()
            if ranks.late_scores and ranks.next_score_s <= start_s:
                step.repeats = False
                ranks.take_late_scores()
            if state.next_arrival_s <= start_s:
                self._deliver()
            if timers and timers[0][0] <= start_s:
                step.repeats = False
                ranks.expire()
            if step.repeats and runner.repeat():
                continue
            evictions = state.evictions_without_token
            filler.fill()
            if step.placed or step.chunks:
                runner.run()
            else:
                self._stall(has_evicted=state.evictions_without_token > evictions)

    def stop(self) -> None:
        """Let `advance` return before the next step."""
        self.state.until_s = -inf

    def quiet_until_s(self, start_s: float, *, heeds_ends: bool = False) -> float:
        """Return a time up to which no prefill, no thinking and, if heeded, no request ends here.

        `start_s` is that of the next step, which `advance` has returned.
        """
        state = self.state
        if state.num_waiting or state.num_prefilling or self.inbox:
            return start_s
        if not state.num_reasoning and not (heeds_ends and state.residents):
            return inf
        batches = [batch for lane in self.ranks.lanes for batch in lane.batches]
        steps = min(batch.steps_to_event() for batch in batches)
        if heeds_ends:
            # Whoever is evicted may be admitted to the same step, and end its second prefill.
            free_blocks = self.memory.total_blocks - self.memory.headroom - state.load.used_blocks
            growths = max(0, free_blocks) // len(state.residents)
            steps = min(steps, 1 + growths * state.instance.block_tokens)
        # A little less, as sums of step times are rounded.
        return start_s + steps * state.instance.latency.shortest_step_s * (1 - 1e-9)

    def _stall(self, *, has_evicted: bool) -> None:
        """Note an empty step: all requests were evicted from it, or all are being copied."""
        awaits_blocks = self.stored.next_landing_s < inf or self.state.held_blocks
        if awaits_blocks and not has_evicted:
            self.is_stalled = True
        else:
            self.state.evictions_without_token += 1
            self.memory.refuse_endless_eviction("none")
        self.state.count()

    def _deliver(self) -> None:
        """Let the requests that have arrived join the queue, all before the first is ranked."""
        state, load, inbox, ranks = self.state, self.state.load, self.inbox, self.ranks
        known_s = now_s = load.now_s
        if self.habits is not None:
            is_idle = not state.residents and not state.num_waiting
            known_s = self.habits.known_s(now_s, state.record.tick_s, is_idle=is_idle)
            if state.next_arrival_s > known_s:
                return
        self.filler.step.repeats = False
        fresh = []
        while state.next_arrival_s <= known_s:
            live = inbox.popleft()
            fresh.append(live)
            state.waiting_tokens += live.view.prompt_tokens
            state.next_arrival_s = inbox[0].joins_s if inbox else inf
        state.num_waiting += len(fresh)
        state.count()
        load.now_s = known_s
        for live in fresh:
            ranks.arrive(live)
            if live.reserved_blocks:
                self._unreserve(live)
                if len(state.residents) < self.filler.step.budget.seats:
                    self.memory.admit(live)
            if self.queued:
                for tell in self.queued:
                    tell(live.sync_view(), known_s)
        load.now_s = now_s

    def view(self) -> InstanceView:
        """Return what a placement may see: one object, brought up to date."""
        state, load, view = self.state, self.state.load, self.own_view
        num_decoding = len(state.residents) - state.num_prefilling - state.num_returning
        view.now_s = load.last_step_end_s
        view.used_blocks = load.used_blocks
        view.used_host_blocks = self.stored.used_host_blocks
        view.brought_blocks = self.stored.brought_blocks
        view.stored_prompt_tokens = self.stored.prompt_tokens
        view.num_waiting = state.num_waiting + len(self.inbox)
        view.num_prefilling = state.num_prefilling
        view.num_reasoning = state.num_reasoning
        view.num_answering = num_decoding - state.num_reasoning
        view.waiting_prompt_tokens = state.waiting_tokens
        for live in self.inbox:
            view.waiting_prompt_tokens += live.view.prompt_tokens
        view.mean_step_s = load.mean_step_s
        return view

    def decodes(self) -> list[RequestView]:
        """Return the requests that decode, as copies."""
        lives = self.state.residents.values()
        return [replace(live.sync_view()) for live in lives if live.batch is not None]

    def timeline(self, requests: Requests) -> Timeline:
        """Return what happened so far to the requests that were submitted, in that order.

        Tokens of requests that still decode are not in it.
        """
        rejected = self.state.instance.cannot_hold(requests.prompt_tokens, requests.output_tokens)
        earlier_tokens = np.zeros(len(requests), dtype=np.int64)
        earlier_tokens[list(self.earlier_tokens)] = list(self.earlier_tokens.values())
        return self.state.record.timeline(requests, rejected, earlier_tokens=earlier_tokens)


@contextmanager
def uncollected() -> Iterator[None]:
    """Run without the search for reference cycles, which would walk all requests repeatedly."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _lives(requests: Requests, *, first_row: int) -> list[RequestState]:
    """Return the requests as the engine keeps them, by row."""
    views = map(
        RequestView,
        requests.request_id.tolist(),
        count(first_row),
        requests.arrival_s.tolist(),
        requests.prompt_tokens.tolist(),
        none_for_nan(requests.score),
        requests.user_class.tolist(),
        none_for_nan(requests.tbt_s),
    )
    output_tokens, reasoning_tokens = requests.output_tokens, requests.reasoning_tokens
    return list(
        map(
            RequestState, count(first_row), views, output_tokens.tolist(), reasoning_tokens.tolist()
        )
    )
