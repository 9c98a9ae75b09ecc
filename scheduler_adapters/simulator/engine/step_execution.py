"""Running one filled step, counting its tokens, and repeating it while nothing changes."""

from math import inf

from lengthwise.errors import SchedulingError
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine.arrivals import Arrivals
from scheduler_adapters.simulator.engine.memory import KvMemory
from scheduler_adapters.simulator.engine.request_state import GONE, DecodeBatch, RequestState
from scheduler_adapters.simulator.engine.step_scheduling import StepScheduler


class StepExecutor(StepScheduler):
    """Fills and runs steps, and so advances virtual time."""

    def __init__(self, policy: Policy, memory: KvMemory, arrivals: Arrivals) -> None:
        super().__init__(policy, memory)
        self.arrivals = arrivals
        self.events = memory.events
        self.record = memory.ranked.record
        self.latency = memory.instance.latency
        self.until_s = inf
        """No step starts from here on; -inf stops the run."""

    def run(self) -> None:
        """Run the step that has been filled, and further ones like it.

        Its tokens are counted, finished requests are removed, changed ones are ranked. One
        function, as it runs at every step.
        """
        step, load, memory = self.step, self.load, self.memory
        scheduled_s, prefills = self.record.scheduled_s, []
        for request, chunk in step.chunks:
            prefills.append((request.context - request.prefill_left, chunk))
            if scheduled_s[request.row] != scheduled_s[request.row]:
                scheduled_s[request.row] = load.now_s
        count = context = 0
        for batch in step.batches:
            count += batch.count
            context += batch.context
        duration_s = self.latency.step_s(count, context, prefills)
        if not duration_s > 0:
            raise SchedulingError(f"a step took {duration_s} s; latency must be above 0")
        if load.now_s > load.last_step_end_s or not load.step:
            self.record.start_s[load.step] = load.now_s
        self._pass(duration_s)
        tick, now_s = load.step - 1, load.now_s
        changed: list[RequestState] = []
        stale: list[DecodeBatch] = []
        num_residents = len(memory.residents)
        emitted = self.events.emitted
        if emitted:
            self._report_decodes()
        for batch in step.batches:
            batch.advance(tick, now_s)
            if batch.next_due <= batch.counter:
                self._end_phases(batch, changed)
            if batch.rank_until <= batch.counter:
                stale.append(batch)
        if step.batches:
            memory.evictions_without_token = 0
        if step.chunks:
            self._count_chunks(tick, changed)
        memory.update_load()
        if changed or stale:
            self.ranked.rank_changed(changed, stale)
        # An observer of single tokens is called at every step.
        step.repeats = step.is_steady and not (step.chunks or emitted or stale)
        if step.repeats and (shares := self.ranked.shares) is not None:
            step.repeats = not shares.is_contended  # whose order may change with each token
        if step.repeats and (changed or len(memory.residents) != num_residents):
            step.repeats = self._has_all()
        if self.split_levels:
            self.rejoin_split_levels()

    def _has_all(self) -> bool:
        """Return whether the step that ran has all requests, so that their order is the same."""
        step = self.step
        step.batches = [batch for batch in step.batches if batch.count]
        count = sum([batch.count for batch in step.batches])
        return 0 < count == len(self.memory.residents) and not self.ranked.num_waiting

    def _pass(self, duration_s: float) -> None:
        """Advance the time by one step."""
        load = self.load
        load.now_s = load.last_step_end_s = load.now_s + duration_s
        load.step += 1
        load.mean_step_s += (duration_s - load.mean_step_s) / load.step
        self.record.tick_s.append(load.now_s)
        if self.events.ran:
            self.memory.update_load()
            for tell in self.events.ran:
                tell(load, duration_s, len(self.memory.residents))

    def _end_phases(self, batch: DecodeBatch, changed: list[RequestState]) -> None:
        """Remove finished members; other members with an event have changed."""
        for request in batch.due():
            if batch.counter + request.offset - request.view.prompt_tokens == request.output_tokens:
                self._finish(request)
            else:
                changed.append(request)
                self._report_thinking_end(request)

    def _report_thinking_end(self, request: RequestState) -> None:
        if self.events.thinking_ended and request.generated_tokens == request.reasoning_tokens:
            for tell in self.events.thinking_ended:
                tell(request.sync_view(), self.load.now_s)

    def _count_chunks(self, tick: int, changed: list[RequestState]) -> None:
        record, now_s, memory = self.record, self.load.now_s, self.memory
        shares = self.ranked.shares
        for request, chunk in self.step.chunks:
            is_first = request.prefill_left + request.kept_tokens == request.context
            if is_first and shares is not None and not request.view.preemptions:
                shares.hit(request.view, request.kept_tokens)  # as engines report hits
            request.prefill_left -= chunk
            if request.prefill_left:
                if is_first:
                    changed.append(request)
                continue
            if request.in_prefills:
                self.ranked.unplace(request)
            # The token that ends a prefill.
            memory.num_prefilling -= 1
            memory.evictions_without_token = 0
            request.context += 1
            request.last_token_s = now_s
            request.add_runs(record, (tick, tick))
            if request.context == request.view.prompt_tokens + 1:
                record.first_token_s[request.row] = now_s
            for tell in self.events.emitted:
                tell(request.sync_view(), 1, now_s)
            if request.context - request.view.prompt_tokens == request.output_tokens:
                self._finish(request)
                continue
            changed.append(request)
            for tell in self.events.prefill_ended:
                tell(request.sync_view(), now_s)
            self._report_thinking_end(request)

    def _report_decodes(self) -> None:
        """Report each decode's token, which is not counted yet."""
        for batch in self.step.batches:
            for request in batch.members.values():
                view = request.sync_view()
                view.generated_tokens += 1
                for tell in self.events.emitted:
                    tell(view, 1, self.load.now_s)

    def _finish(self, request: RequestState) -> None:
        if request.batch is not None:
            self.ranked.leave(request)
        memory = self.memory
        if self.ranked.shares is not None:
            self.ranked.shares.leaves(request.view)
        memory.free(-(-(request.context - 1) // memory.instance.block_tokens))
        del memory.residents[request.row]
        request.version += 1
        request.is_gone = True
        self.record.finished_s[request.row] = self.load.now_s
        self.ranked.median.finished(request.view, request.output_tokens)
        for tell in self.events.finished:
            tell(request.sync_view(), self.load.now_s)
        self.ranked.requests[request.row] = GONE

    def repeat(self) -> bool:
        """Run the step that ran last again and again, as long as it would be filled the same.

        The caller has decided that a step starts now; return False if it cannot be this one. A step
        that ends with an event is run in full, and is the last.
        """
        load, step, memory, latency = self.load, self.step, self.memory, self.latency
        batches = step.batches
        size, until_s, quiet_steps = memory.instance.block_tokens, self.until_s, inf
        most_blocks = memory.decode_blocks
        if step.rule.displace:
            most_blocks = min(most_blocks, load.total_blocks - memory.blocks_awaited())
        count = context = steps = 0
        for batch in batches:
            steps_to_event = batch.steps_to_event()
            if steps_to_event <= quiet_steps:
                quiet_steps = steps_to_event - 1
            count += batch.count
            context += batch.context
        while load.now_s < until_s or not steps:
            growth = 0
            for batch in batches:
                growth += batch.growth[(batch.counter + steps) % size]
            step.repeats = load.used_blocks + growth <= most_blocks and (
                step.rule is self.fixed_rule or self.rule_stays()
            )
            if not step.repeats:
                break
            load.used_blocks += growth
            if steps >= quiet_steps:
                self._advance_batches(steps)
                self.run()
                return True
            self._pass(latency.step_s(count, context, ()))
            context += count
            steps += 1
            if steps == 1 and load.now_s < until_s:  # in a cluster the second is rare
                # Until a request or a score arrives, a copy lands, or a rank ends.
                timers, lands_s = self.ranked.timers, memory.stored.next_landing_s
                arrives_s = min(self.arrivals.next_s, self.ranked.next_score_s)
                until_s = min(arrives_s, lands_s, until_s, timers[0][0] if timers else inf)
        self._advance_batches(steps)
        return steps > 0

    def _advance_batches(self, steps: int) -> None:
        for batch in self.step.batches if steps else ():
            batch.advance_many(steps, self.load.now_s)
