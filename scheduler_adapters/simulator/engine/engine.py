"""The fast engine: the rules of `reference.py`, bit for bit, at O(1) work per step.

Decodes that advance together form a cohort (`cohort.py`), so a step costs the same for two of them
and for two hundred. While nobody is prefilled and nothing happens to anybody, steps are repeated
without filling them anew. The engine has five layers: `ranks.py`, `offload.py`, `eviction.py`,
`filling.py`, and this file, which lets time pass.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from math import inf

from scheduler_adapters.policy import Policy, no_rule
from scheduler_adapters.simulator.engine.cohort import Cohort, Live
from scheduler_adapters.simulator.engine.filling import Filling
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.timeline.columns import Record, none_for_nan
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import Requests
from scoring_service.errors import SchedulingError


class Engine(Filling):
    """Runs requests under a policy on one instance; one object per run.

    `skip_ahead` only changes how long a run takes.
    """

    __slots__ = (
        "arrivals",
        "next_arrival_s",
        "skip_ahead",
    )

    arrivals: list[Live]
    """Who is still to come, the next one last."""
    next_arrival_s: float

    def __init__(self, policy: Policy, instance: Instance, *, skip_ahead: bool = True) -> None:
        super().__init__(policy, instance)
        self.skip_ahead = skip_ahead
        self.evictions_without_token = 0

    def run(self, requests: Requests) -> Timeline:
        """Run until all requests are finished.

        Raises:
            InvalidDecision: the policy raised, or ranked with NaN.
            SchedulingError: requests evict each other for ever.
        """
        self._expect(requests)
        with _uncollected():
            while self.arrivals or self.num_waiting or self.residents:
                self._boundary()
                evictions = self.evictions_without_token
                self._fill()
                if self.placed or self.chunks:
                    self._run_step()
                else:
                    self._stall(has_evicted=self.evictions_without_token > evictions)
        return self.timeline()

    def timeline(self) -> Timeline:
        """What happened so far; tokens of requests that still decode are not in it."""
        return self.record.timeline()

    def _expect(self, requests: Requests) -> None:
        self.record = Record(requests, self.instance)
        self.num_rows = len(requests)
        self.lives = _lives(requests)
        rejected = self.record.rejected.tolist()
        self.arrivals = [live for live in reversed(self.lives) if not rejected[live.row]]
        self._look_at_arrivals()

    def _stall(self, *, has_evicted: bool) -> None:
        """An empty step: everybody was evicted from it, or everybody is being copied."""
        if self.next_landing_s < inf and not has_evicted:
            self.load.now_s = min(self.next_landing_s, self.next_arrival_s)
        else:
            self.evictions_without_token += 1
            self._refuse_endless_eviction("none")
        self._count()

    def _boundary(self) -> None:
        load = self.load
        if not self.num_waiting and not self.residents:
            load.now_s = max(load.now_s, self.next_arrival_s)
        if self.next_landing_s <= load.now_s:
            self._land()
        if self.next_arrival_s <= load.now_s:
            self._deliver()
        if self.timers and self.timers[0][0] <= load.now_s:
            self._expire()

    def _deliver(self) -> None:
        """Arrivals join the queue, all of them before the first is ranked."""
        fresh = []
        while self.next_arrival_s <= self.load.now_s:
            fresh.append(self.arrivals.pop())
            self._look_at_arrivals()
        self.num_waiting += len(fresh)
        self._count()
        for live in fresh:
            self._ask(live)
            self._enqueue(live)

    def _look_at_arrivals(self) -> None:
        self.next_arrival_s = self.arrivals[-1].view.arrival_s if self.arrivals else inf

    def _run_step(self) -> None:
        load, record = self.load, self.record
        start_s = load.now_s
        prefills = []
        for live, chunk in self.chunks:
            processed = live.context - live.prefill_left
            prefills.append((processed, chunk))
            if record.scheduled_s[live.row] != record.scheduled_s[live.row]:
                record.scheduled_s[live.row] = start_s
        context = 0
        for cohort in self.placed:
            context += cohort.context
        duration_s = self.instance.latency.step_s(self.budget.num_decodes, context, prefills)
        if not duration_s > 0:
            raise SchedulingError(f"a step took {duration_s} s; latency must be above 0")
        self._pass(duration_s)
        self._book()

    def _pass(self, duration_s: float) -> None:
        """Let the time of one step pass."""
        load = self.load
        load.now_s = load.last_step_end_s = load.now_s + duration_s
        load.step += 1
        load.mean_step_s += (duration_s - load.mean_step_s) / load.step
        self.record.tick_s.append(load.now_s)

    def _book(self) -> None:
        """Count the step's tokens, let the finished go, then rank whoever changed."""
        load, tick = self.load, self.load.step - 1
        changed: list[Live] = []
        stale: list[Cohort] = []
        num_residents = len(self.residents)
        for cohort in self.placed:
            cohort.advance(tick, load.now_s)
            if cohort.events[0] < (cohort.counter + 1) * self.num_rows:
                self._book_due(cohort, changed)
            if cohort.ask_at <= cohort.counter:
                stale.append(cohort)
        if self.placed:
            self.evictions_without_token = 0
        if self.chunks:
            self._book_chunks(tick, changed)
        self._count()
        may_repeat = (
            self.skip_ahead
            and self.is_steady
            and not (changed or self.chunks)
            and len(self.residents) == num_residents
        )
        if stale and may_repeat:
            self._repeat_asking(stale)
        elif changed or stale:
            self._rank_changed(changed, stale)
        elif may_repeat:
            self._repeat()
        while self.split_lanes:
            self._rejoin(self.split_lanes.pop())

    def _book_due(self, cohort: Cohort, changed: list[Live]) -> None:
        """Let the finished go; the other members to whom something happens changed."""
        for live in cohort.due():
            if cohort.counter + live.offset - live.view.prompt_tokens == live.output_tokens:
                self._finish(live)
            else:
                changed.append(live)

    def _book_chunks(self, tick: int, changed: list[Live]) -> None:
        for live, chunk in self.chunks:
            is_first = live.prefill_left == live.context
            live.prefill_left -= chunk
            if live.prefill_left:
                if is_first:
                    changed.append(live)
                continue
            if live.in_prefills:
                self._unplace(live)
            self._emit_first(live, tick)
            if live.context - live.view.prompt_tokens == live.output_tokens:
                self._finish(live)
            else:
                changed.append(live)

    def _emit_first(self, live: Live, tick: int) -> None:
        """The token that ends a prefill."""
        now_s = self.load.now_s
        self.num_prefilling -= 1
        self.evictions_without_token = 0
        live.context += 1
        live.last_token_s = now_s
        self.record.run(live.row, tick, tick)
        if live.context == live.view.prompt_tokens + 1:
            self.record.first_token_s[live.row] = now_s

    def _finish(self, live: Live) -> None:
        if live.cohort is not None:
            live.cohort.leave(live, self.record)
        self.used_blocks -= -(-(live.context - 1) // self.block_tokens)
        del self.residents[live.row]
        live.version += 1
        self.record.finished_s[live.row] = self.load.now_s

    def _rank_changed(self, changed: list[Live], stale: list[Cohort]) -> None:
        for live in changed:
            self._unplace(live)
        if stale:
            self._rank_groups(stale)
        for live in changed:
            self._ask(live)
            self._place(live)

    def _repeat(self) -> None:
        """Run the step that just ran again and again, as long as it would be filled the same."""
        load, cohorts = self.load, self.placed
        limit = min(cohort.steps_to_event() for cohort in cohorts) - 1
        until_s = self._undisturbed_until_s()
        step_s, count = self.instance.latency.step_s, self.budget.num_decodes
        context = sum(cohort.context for cohort in cohorts)
        steps = 0
        while steps < limit and load.now_s < until_s:
            growth = 0
            for cohort in cohorts:
                growth += cohort.growth[(cohort.counter + steps) % self.block_tokens]
            if self.used_blocks + growth + self.headroom > self.total_blocks:
                break
            if self.has_rule and not self._rule_stays():
                break
            self.used_blocks += growth
            self._pass(step_s(count, context, ()))
            context += count
            steps += 1
        for cohort in cohorts:
            cohort.advance_many(steps, load.now_s)

    def _repeat_asking(self, stale: list[Cohort]) -> None:
        """The same where shared ranks end with every step: until one of them changes its lane.

        Inside a lane order does not matter, as long as there is room for all.
        """
        load, cohorts, count = self.load, self.placed, self.budget.num_decodes
        lanes = [cohort.lane for cohort in cohorts]
        has_room = count == load.num_decoding and not (self.rule.displace and self.num_waiting)
        while True:
            self._rank_groups(stale)
            if not has_room or load.now_s >= self._undisturbed_until_s():
                return
            growth = context = 0
            for cohort, lane in zip(cohorts, lanes, strict=True):
                if (
                    not cohort.count
                    or cohort.lane is not lane
                    or cohort.events[0] < (cohort.counter + 2) * self.num_rows
                ):
                    return
                growth += cohort.growth[cohort.counter % self.block_tokens]
                context += cohort.context
            if self.used_blocks + growth + self.headroom > self.total_blocks:
                return
            if self.has_rule and not self._rule_stays():
                return
            self.used_blocks += growth
            self._pass(self.instance.latency.step_s(count, context, ()))
            stale = []
            for cohort in cohorts:
                cohort.advance(load.step - 1, load.now_s)
                if cohort.ask_at <= cohort.counter:
                    stale.append(cohort)

    def _undisturbed_until_s(self) -> float:
        """When the next request arrives, copy lands or rank ends."""
        until_s = min(self.next_arrival_s, self.next_landing_s)
        return min(until_s, self.timers[0][0]) if self.timers else until_s

    def _rule_stays(self) -> bool:
        """Ask for the next step's rule; keep it where it differs, so that it is asked for once."""
        self._count()
        self.load.used_blocks = self.used_blocks
        try:
            rule = self.policy.step_rule(self.load)
        except Exception as error:
            raise no_rule(self.policy, self.load, error) from error
        if rule is self.rule or rule == self.rule:
            return True
        self.pending_rule = rule
        return False


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the search for reference cycles: it would walk all requests again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _lives(requests: Requests) -> list[Live]:
    """The requests as the engine keeps them, by row."""
    views = map(
        RequestView,
        requests.request_id.tolist(),
        range(len(requests)),
        requests.arrival_s.tolist(),
        requests.prompt_tokens.tolist(),
        none_for_nan(requests.score),
        requests.user_class.tolist(),
        none_for_nan(requests.tbt_s),
    )
    output_tokens, reasoning_tokens = requests.output_tokens, requests.reasoning_tokens
    return list(map(Live, count(), views, output_tokens.tolist(), reasoning_tokens.tolist()))
