"""One simulated instance, advanced by its caller.

Decodes that advance together form a batch (`request_state.py`): a step with two of them costs as
much as one with two hundred. While nothing changes, the same step is repeated
(`step_execution.py`). `tests/scheduler_adapters/simulator/reference.py` has the rules, plainly.
"""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf

import numpy as np

from scheduler_adapters.policies.fcfs import ArrivalFallback
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine.arrivals import Arrivals, request_states
from scheduler_adapters.simulator.engine.memory import KvMemory
from scheduler_adapters.simulator.engine.observed_events import ObservedEvents
from scheduler_adapters.simulator.engine.ranked_requests import RankedRequests
from scheduler_adapters.simulator.engine.request_state import GONE, RequestState
from scheduler_adapters.simulator.engine.step_contents import StepContents
from scheduler_adapters.simulator.engine.step_execution import StepExecutor
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.timeline.columns import TimelineRecord
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import InstanceView, LoadView, RequestView
from scheduler_adapters.workload.requests import Requests


class Engine:
    """Serves requests under a policy on one instance, in virtual time.

    The caller submits requests, future ones included, and advances the clock. Equal requests give
    equal bytes, whatever the pieces in which the time passes.

    Args:
        vllm: whether to follow two defaults of vLLM, async scheduling and prefix caching.
        observers: of the engine's events, in order (`timeline/observer.py`).
        instance_id: of the views that placements read.
    """

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
        self.instance = instance
        self.load = LoadView(total_blocks=instance.kv_blocks)
        self.record = TimelineRecord()
        self.events = ObservedEvents()
        for observer in observers:
            self.events.add(observer)
        self.arrivals = Arrivals(async_scheduling=vllm)
        self.ranked = RankedRequests(policy, self.load, self.record, instance.block_tokens)
        self.requests = self.ranked.requests
        self.levels = self.ranked.levels
        self.step = StepContents(instance)
        self.memory = KvMemory(
            instance, self.load, self.ranked, self.step, self.events, keeps_prefixes=vllm
        )
        self.executor = StepExecutor(policy, self.memory, self.arrivals)
        self.own_view = InstanceView(
            instance_id=instance_id,
            now_s=0.0,
            used_blocks=0,
            total_blocks=instance.kv_blocks,
            block_tokens=instance.block_tokens,
            decodes=self.decodes,
        )
        self.earlier_tokens: dict[int, int] = {}
        """Number of tokens in earlier instances, by row."""
        self.is_stalled = False
        """True while nothing can run before the next arrival or landing."""

    def observe(self, observer: EngineObserver) -> None:
        """Report events to an observer from now on."""
        self.step.repeats = False
        self.events.add(observer)

    def submit_all(self, requests: Requests) -> None:
        """Submit requests in order of arrival; each has the next row of the timeline."""
        states = list(request_states(requests, len(self.requests)))
        self.requests.extend(states)
        self.record.add_rows(len(states))
        rejected = self.instance.cannot_hold(requests.prompt_tokens, requests.output_tokens)
        for row in np.flatnonzero(rejected).tolist():
            states[row].is_gone = True
        for row in np.flatnonzero((requests.score_delay_s > 0) & ~rejected).tolist():
            self.ranked.delay_score(states[row])
        self.arrivals.add([state for state in states if not state.is_gone])

    def submit(self, request: RequestState, *, carried: RequestState | None = None) -> bool:
        """Submit a request, which arrives at its `joins_s` or, if that has passed, now.

        Return False, and reject the request, if the KV memory cannot hold it even alone. With
        `carried`, its state as another instance withdrew it, it continues from `carried.joins_s` on
        as soon as there are blocks for its KV. The timeline has the tokens of this instance only.
        """
        view = request.view
        request.row = view.number = len(self.requests)
        self.requests.append(request)
        self.record.add_rows(1)
        blocks = -(-(view.prompt_tokens + request.output_tokens) // self.instance.block_tokens)
        if blocks > self.instance.most_blocks:
            request.is_gone = True
            return False
        if request.score_delay_s:
            self.ranked.delay_score(request)
        if carried is not None:
            self._resume(request, carried)
        self.arrivals.add([request])
        return True

    def _resume(self, request: RequestState, carried: RequestState) -> None:
        """Give a request its progress in earlier instances."""
        view, record, token_s = request.view, self.record, carried.other_token_s
        request.joins_s = max(request.joins_s, carried.joins_s)
        request.context += len(token_s)
        view.preemptions = record.preemptions[request.row] = carried.view.preemptions
        view.queue, view.queue_entered_s = carried.view.queue, carried.view.queue_entered_s
        request.other_token_s = token_s
        self.earlier_tokens[request.row] = len(token_s)
        record.scheduled_s[request.row] = carried.scheduled_s
        if token_s:
            record.first_token_s[request.row] = token_s[0]
            request.last_token_s = token_s[-1]
        request.reserved_blocks = carried.reserved_blocks
        if carried.kv_tokens:
            self.memory.stored.bring(request, self.instance.blocks(carried.kv_tokens))
            request.prefill_left = request.context - carried.kv_tokens
            if request.prefill_left == 1 and token_s:
                request.prefill_left = 0  # the newest token's KV is computed by its next step

    def withdraw(self, request: RequestState, *, holds_blocks: bool = False) -> None:
        """Remove an unfinished request, which keeps its progress, and its KV if it has any.

        With `holds_blocks` its blocks stay reserved until `release`: its KV is still to be copied.
        """
        load, memory, used_blocks = self.load, self.memory, self.load.used_blocks
        has_kv = not request.is_waiting or request.stored_blocks
        request.kv_tokens = request.computed_tokens if has_kv else 0
        if request.rank is None:
            self.arrivals.remove(request)
            memory.unreserve(request)
        else:
            memory.remove(request)
        memory.stored.free(request)
        request.version += 1
        request.is_gone = True
        self.is_stalled = self.step.repeats = False
        request.held_blocks = used_blocks - load.used_blocks if holds_blocks else 0
        memory.hold(request.held_blocks)
        memory.update_load()
        view = request.sync_view()
        for tell in self.events.withdrawn:
            tell(view, load.now_s)
        self.requests[request.row] = GONE
        request.joins_s = load.now_s
        request.scheduled_s = self.record.scheduled_s[request.row]
        request.other_token_s, request.run_ticks = tuple(self.token_s(request)), []

    def token_s(self, request: RequestState) -> list[float]:
        """Return the times of a request's tokens so far, in this instance and in earlier ones."""
        batch = request.batch
        token_s = [*request.other_token_s, *self.record.token_s(request.run_ticks)]
        if batch is not None and batch.counter > request.joined:
            token_s += self.record.token_s(batch.ticks_of(request))
        return token_s

    def reserve(self, blocks: int) -> bool:
        """Reserve free blocks for a request whose KV is being copied here.

        Return False if there are too few. They are freed by `release`, or become the request's
        by `Carried.reserved_blocks`.
        """
        memory = self.memory
        most_blocks = min(memory.admission_blocks, memory.decode_blocks)
        if blocks and self.load.used_blocks + blocks > most_blocks:
            return False
        memory.hold(blocks)
        self.step.repeats = False
        return True

    def release(self, blocks: int, now_s: float) -> None:
        """Free blocks held for a request that has left, or reserved for one that was cancelled."""
        self.memory.hold(-blocks)
        self.step.repeats = False
        if self.is_stalled:
            self.is_stalled = False
            self.load.now_s = max(self.load.now_s, now_s)

    def advance(self, until_s: float) -> float:
        """Run every step that starts before `until_s`; return when the next one would, or inf.

        A step may end after `until_s`. A request submitted then with an earlier arrival takes part
        in the step after it. An observer may `stop` the run.

        Raises:
            InvalidDecision: the policy raised, or ranked with NaN.
            SchedulingError: requests evict each other for ever.
        """
        load, step, memory, arrivals = self.load, self.step, self.memory, self.arrivals
        residents, stored, executor = memory.residents, memory.stored, self.executor
        ranked, timers = self.ranked, self.ranked.timers
        executor.until_s = until_s
        while True:
            start_s = load.now_s
            if not ranked.num_waiting and not residents:
                start_s = max(start_s, arrivals.next_s)
            elif self.is_stalled:
                wakes_s = min(arrivals.next_s, ranked.next_score_s)
                start_s = max(start_s, min(stored.next_landing_s, wakes_s))
                self.is_stalled = start_s >= executor.until_s
                if not self.is_stalled:
                    arrivals.busy_since_s = start_s
                elif executor.until_s < inf:
                    # The caller may free blocks at `until_s`, not earlier.
                    load.now_s = max(load.now_s, executor.until_s)
            if start_s >= executor.until_s:
                return start_s
            load.now_s = start_s
            if stored.next_landing_s <= start_s:
                step.repeats = False
                memory.land()
            if ranked.late_scores and ranked.next_score_s <= start_s:
                step.repeats = False
                for request in ranked.take_late_scores():
                    for tell in self.events.scored:
                        tell(request.sync_view(), start_s)
            if arrivals.next_s <= start_s:
                self._deliver()
            if isinstance(ranked.policy, ArrivalFallback) and ranked.policy.switch():
                step.repeats = False
                ranked.rank_waiting()
            if timers and timers[0][0] <= start_s:
                step.repeats = False
                ranked.expire()
            if step.repeats and executor.repeat():
                continue
            evictions = memory.evictions_without_token
            executor.fill()
            if step.batches or step.chunks:
                executor.run()
                continue
            # All requests were evicted from the step, or all are being copied.
            awaits_blocks = stored.next_landing_s < inf or memory.held_blocks > 0
            self.is_stalled = awaits_blocks and memory.evictions_without_token == evictions
            if not self.is_stalled:
                memory.evictions_without_token += 1
                memory.refuse_endless_eviction("none")
            memory.update_load()

    def stop(self) -> None:
        """Let `advance` return before the next step."""
        self.executor.until_s = -inf

    def quiet_until_s(self, start_s: float, *, heeds_ends: bool = False) -> float:
        """Return a time before which no prefill, thinking or, if heeded, request ends here.

        `start_s` is that of the next step, which `advance` has returned.
        """
        ranked, memory, instance = self.ranked, self.memory, self.instance
        if ranked.num_waiting or memory.num_prefilling or self.arrivals.pending:
            return start_s
        if not ranked.num_reasoning and not (heeds_ends and memory.residents):
            return inf
        steps = min(batch.steps_to_event() for level in ranked.levels for batch in level.batches)
        if heeds_ends:
            # An evicted request may be admitted to the same step, and end its second prefill.
            spare = memory.decode_blocks - self.load.used_blocks
            growths = max(0, spare) // len(memory.residents)
            steps = min(steps, 1 + growths * instance.block_tokens)
        # A little less, as sums of step times are rounded.
        return start_s + steps * instance.latency.shortest_step_s * (1 - 1e-9)

    def _deliver(self) -> None:
        """Put the requests that have arrived into the queue, one after the other."""
        load, memory, ranked = self.load, self.memory, self.ranked
        now_s, is_idle = load.now_s, not memory.residents and not ranked.num_waiting
        planned_s = self.arrivals.planned_s(now_s, self.record.tick_s, is_idle=is_idle)
        if not (arrived := self.arrivals.take(planned_s)):
            return
        self.step.repeats = False
        load.now_s = planned_s
        for request in arrived:
            ranked.count_waiting(request)
            memory.update_load()
            ranked.arrive(request)
            if request.reserved_blocks:
                memory.unreserve(request)
                if len(memory.residents) < self.step.budget.seats:
                    memory.admit(request)
            for tell in self.events.queued:
                tell(request.sync_view(), planned_s)
        load.now_s = now_s

    def view(self) -> InstanceView:
        """Return the view for placements: always the same object, brought up to date."""
        ranked, memory, stored, view = self.ranked, self.memory, self.memory.stored, self.own_view
        num_decoding = len(memory.residents) - memory.num_prefilling - memory.num_returning
        view.now_s = self.load.last_step_end_s
        view.used_blocks = self.load.used_blocks
        view.used_host_blocks = stored.used_host_blocks
        view.brought_blocks = stored.brought_blocks
        view.stored_prompt_tokens = stored.prompt_tokens
        view.num_waiting = ranked.num_waiting + len(self.arrivals.pending)
        view.num_prefilling = memory.num_prefilling
        view.num_reasoning = ranked.num_reasoning
        view.num_answering = num_decoding - ranked.num_reasoning
        view.waiting_prompt_tokens = ranked.waiting_tokens
        for request in self.arrivals.pending:
            view.waiting_prompt_tokens += request.view.prompt_tokens
        view.mean_step_s = self.load.mean_step_s
        return view

    def decodes(self) -> list[RequestView]:
        """Return the requests that decode, as copies."""
        residents = self.memory.residents.values()
        return [replace(one.sync_view()) for one in residents if one.batch is not None]

    def timeline(self, requests: Requests) -> Timeline:
        """Return the timeline so far of the submitted requests, in the order of submission.

        Tokens of requests that still decode are not in it.
        """
        rejected = self.instance.cannot_hold(requests.prompt_tokens, requests.output_tokens)
        earlier_tokens = np.zeros(len(requests), dtype=np.int64)
        earlier_tokens[list(self.earlier_tokens)] = list(self.earlier_tokens.values())
        return self.record.timeline(requests, rejected, earlier_tokens=earlier_tokens)


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
