"""Running one filled step, booking what came of it, and repeating it while nothing changes."""

from math import inf

from lengthwise.errors import SchedulingError
from scheduler_adapters.simulator.engine.decode_batch import DecodeBatch
from scheduler_adapters.simulator.engine.request_state import GONE, RequestState
from scheduler_adapters.simulator.engine.state import EngineState
from scheduler_adapters.simulator.engine.step_scheduling import StepScheduler


class StepExecutor:
    """Lets the time of steps pass."""

    __slots__ = (
        "block_tokens", "emitted", "events", "filler", "finished", "latency", "load", "memory",
        "ran", "ranks", "record", "residents", "split_lanes", "state", "step", "stored", "tick_s",
    )  # fmt: skip

    def __init__(self, state: EngineState, filler: StepScheduler) -> None:
        self.state = state
        self.load = state.load
        self.record = state.record
        self.events = state.events
        self.emitted = state.events.emitted
        self.finished = state.events.finished
        self.ran = state.events.ran
        self.tick_s = state.record.tick_s
        self.residents = state.residents
        self.split_lanes = filler.split_lanes
        self.filler = filler
        self.step = filler.step
        self.ranks = filler.ranks
        self.memory = filler.memory
        self.stored = filler.memory.stored
        self.block_tokens = state.instance.block_tokens
        self.latency = state.instance.latency

    def run(self) -> None:
        """Run the step that has been filled, book it, and run further ones like it.

        Booking counts the tokens and removes the finished; then the requests that changed are
        ranked. One function, for this runs at every step.
        """
        state, step, scheduled_s, load = self.state, self.step, self.record.scheduled_s, self.load
        prefills = []
        for live, chunk in step.chunks:
            prefills.append((live.context - live.prefill_left, chunk))
            if scheduled_s[live.row] != scheduled_s[live.row]:
                scheduled_s[live.row] = load.now_s
        count = context = 0
        for batch in step.placed:
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
        num_residents = len(self.residents)
        if self.emitted:
            self._tell_decodes()
        for batch in step.placed:
            batch.advance(tick, now_s)
            if batch.next_due <= batch.counter:
                self._book_due(batch, changed)
            if batch.ask_at <= batch.counter:
                stale.append(batch)
        if step.placed:
            state.evictions_without_token = 0
        if step.chunks:
            self._book_chunks(tick, changed)
        state.count()
        has_changed = changed or len(self.residents) != num_residents
        # An observer of single tokens wants every step.
        step.repeats = step.is_steady and not (step.chunks or self.emitted)
        if stale and step.repeats and not has_changed:
            self._repeat_asking(stale)
        elif changed or stale:
            self.ranks.rank_changed(changed, stale)
        if stale or (has_changed and step.repeats):
            step.repeats = not stale and self._has_all()
        if self.split_lanes:
            self.filler.rejoin_split_lanes()

    def _has_all(self) -> bool:
        """Return whether the step that ran has all requests, so that their order is the same."""
        step = self.step
        step.placed = [batch for batch in step.placed if batch.count]
        count = sum([batch.count for batch in step.placed])
        return 0 < count == len(self.residents) and not self.state.num_waiting

    def _pass(self, duration_s: float) -> None:
        """Let the time of one step pass."""
        load = self.load
        load.now_s = load.last_step_end_s = load.now_s + duration_s
        load.step += 1
        load.mean_step_s += (duration_s - load.mean_step_s) / load.step
        self.tick_s.append(load.now_s)
        if self.ran:
            self.state.count()
            for tell in self.ran:
                tell(load, duration_s, len(self.state.residents))

    def _book_due(self, batch: DecodeBatch, changed: list[RequestState]) -> None:
        """Remove the finished; the other members to whom something happens changed."""
        for live in batch.due():
            if batch.counter + live.offset - live.view.prompt_tokens == live.output_tokens:
                self._finish(live)
            else:
                changed.append(live)
                if self.events.thinking_ended:
                    self._tell_thinking_ended(live)

    def _tell_thinking_ended(self, live: RequestState) -> None:
        if live.now_context - live.view.prompt_tokens == live.reasoning_tokens:
            for tell in self.events.thinking_ended:
                tell(live.sync_view(), self.load.now_s)

    def _book_chunks(self, tick: int, changed: list[RequestState]) -> None:
        state, record, now_s = self.state, self.record, self.load.now_s
        for live, chunk in self.step.chunks:
            is_first = live.prefill_left + live.kept_tokens == live.context
            live.prefill_left -= chunk
            if live.prefill_left:
                if is_first:
                    changed.append(live)
                continue
            if live.in_prefills:
                self.ranks.unplace(live)
            # The token that ends a prefill.
            state.num_prefilling -= 1
            state.evictions_without_token = 0
            live.context += 1
            live.last_token_s = now_s
            live.write_runs(record, (tick, tick))
            if live.context == live.view.prompt_tokens + 1:
                record.first_token_s[live.row] = now_s
            for tell in self.emitted:
                tell(live.sync_view(), 1, now_s)
            if live.context - live.view.prompt_tokens == live.output_tokens:
                self._finish(live)
                continue
            changed.append(live)
            for tell in self.events.prefill_ended:
                tell(live.sync_view(), now_s)
            if self.events.thinking_ended:
                self._tell_thinking_ended(live)

    def _tell_decodes(self) -> None:
        """Tell the observers of each decode's token, which is booked with its batch."""
        for batch in self.step.placed:
            for live in batch.members.values():
                view = live.sync_view()
                view.generated_tokens += 1
                for tell in self.emitted:
                    tell(view, 1, self.load.now_s)

    def _finish(self, live: RequestState) -> None:
        state = self.state
        if live.batch is not None:
            self.ranks.leave(live.batch, live)
        blocks = -(-(live.context - 1) // self.block_tokens)
        self.load.used_blocks -= blocks
        if self.memory.habits is not None:
            self.memory.habits.freed(blocks)
        del state.residents[live.row]
        live.version += 1
        live.is_gone = True
        self.record.finished_s[live.row] = self.load.now_s
        for tell in self.finished:
            tell(live.sync_view(), self.load.now_s)
        state.lives[live.row] = GONE

    def repeat(self) -> bool:
        """Run the step that ran last again and again, as long as it would be filled the same.

        The caller has decided that a step starts now; return False if it cannot be this one. A step
        at whose end something happens is booked, and is the last.
        """
        load, filler, step, size = self.load, self.filler, self.step, self.block_tokens
        batches, has_rule, latency = step.placed, filler.has_rule, self.latency
        until_s, quiet_steps = self.state.until_s, inf
        most_blocks = load.total_blocks - max(self.memory.headroom, self.memory.blocks_awaited())
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
                not has_rule or filler.rule_stays()
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
            if steps == 1 and load.now_s < until_s:  # as it mostly is not in a cluster
                until_s = self._quiet_until_s()
        self._advance_batches(steps)
        return steps > 0

    def _advance_batches(self, steps: int) -> None:
        for batch in self.step.placed if steps else ():
            batch.advance_many(steps, self.load.now_s)

    def _repeat_asking(self, stale: list[DecodeBatch]) -> None:
        """Do the same where shared ranks end with every step, until one of them changes its lane.

        Inside a lane order does not matter, as long as there is room for all.
        """
        load, filler, ranks, size = self.load, self.filler, self.ranks, self.block_tokens
        timers, quiet_until_s = ranks.timers, self._quiet_until_s()
        most_blocks = load.total_blocks - self.memory.headroom
        batches = self.step.placed
        count = sum([batch.count for batch in batches])
        lanes = [batch.lane for batch in batches]
        displaces = self.step.rule.displace and self.state.num_waiting
        has_room = count == load.num_decoding and not displaces
        while True:
            if stale:
                ranks.rank_groups(stale)
            now_s = load.now_s
            if not has_room or now_s >= quiet_until_s or (timers and timers[0][0] <= now_s):
                return
            growth = context = 0
            for batch, lane in zip(batches, lanes, strict=True):
                is_due = batch.next_due <= batch.counter + 1
                if is_due or not batch.count or batch.lane is not lane:
                    return
                growth += batch.growth[batch.counter % size]
                context += batch.context
            if load.used_blocks + growth > most_blocks:
                return
            if filler.has_rule and not filler.rule_stays():
                return
            load.used_blocks += growth
            self._pass(self.latency.step_s(count, context, ()))
            stale = []
            for batch in batches:
                batch.advance(load.step - 1, load.now_s)
                if batch.ask_at <= batch.counter:
                    stale.append(batch)

    def _quiet_until_s(self) -> float:
        """Return when a request or score arrives, a copy lands, a rank ends, or the run is cut."""
        state = self.state
        arrives_s = min(state.next_arrival_s, self.ranks.next_score_s)
        return min(arrives_s, self.stored.next_landing_s, state.until_s, self.ranks.next_timer_s)
