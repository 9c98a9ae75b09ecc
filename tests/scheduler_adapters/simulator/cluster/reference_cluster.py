"""A cluster written as plainly as possible: one step of one instance at a time, least start first.

Views are counted anew for every decision by walking all requests. The fast cluster must give the
same decisions and the same times. Rates of transfers are those of `links.Transfers`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, nextafter

import numpy as np

from scheduler_adapters.placement import Placement, SetRole, Watch
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.cluster import ClusterRun, request_migrations
from scheduler_adapters.simulator.cluster.outages import Outage
from scheduler_adapters.simulator.cluster.placement_views import TelemetryAge
from scheduler_adapters.simulator.cluster.request_migrations import OngoingMigration
from scheduler_adapters.simulator.engine.arrivals import request_state
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.links import Fabric, Transfers
from scheduler_adapters.timeline.migrations import Migration
from scheduler_adapters.views import InstanceView, Phase
from scheduler_adapters.workload.requests import Requests
from tests.scheduler_adapters.simulator.any_policy import EveryToken


class ReferenceCluster:
    def __init__(
        self,
        requests: Requests,
        placement: Placement,
        make_policy: Callable[[], Policy],
        instances: Sequence[Instance],
        fabric: Fabric | None = None,
        roles: Sequence[str] | None = None,
        clients: int | None = None,
        outages: Sequence[Outage] = (),
        age: TelemetryAge | None = None,
    ) -> None:
        self.age = age or TelemetryAge()
        self.snapshot: list[InstanceView] = []
        """By instance, with what was decided since; empty where views are always fresh."""
        self.snapshot_s = 0.0
        self.num_snapshots = 0
        self.num_fallbacks = 0
        self.coming = [(one.until_s, one.instance) for one in outages if one.until_s < inf]
        self.dying = [(one.at_s, one.instance) for one in outages]
        self.dead: set[int] = set()
        self.homeless: list[tuple[int, RequestState, bool]] = []
        self.num_replaced = np.zeros(len(requests), dtype=np.int64)
        self.clients = clients
        self.num_due = len(requests) if clients is None else min(clients, len(requests))
        """Requests that have been sent or will be without waiting for another one."""
        self.sent_s = np.zeros(len(requests))
        self.requests = replace(requests, arrival_s=requests.arrival_s.copy())
        self.placement = placement
        self.engines = [
            Engine(make_policy(), instance, observers=[EveryToken()], instance_id=i)
            for i, instance in enumerate(instances)
        ]
        for engine, role in zip(self.engines, roles or [], strict=False):
            engine.own_view.role = role
        self.transfers = Transfers(fabric or Fabric(kv_bytes_per_token=1))
        self.flights: dict[int, OngoingMigration] = {}
        self.at: dict[int, tuple[int, RequestState]] = {}
        """Present or last instance of each request."""
        self.ended: list[tuple[float, int, int, int, int, RequestState]] = []
        """(time, instance, row of its engine, order, row, request) of ends to report."""
        self.starting: list[tuple[float, int, OngoingMigration]] = []
        """(time, number, flight) of transfers that wait for the end of a step."""
        self.parked: list[OngoingMigration] = []
        self.left: list[OngoingMigration] = []
        """Requests in no instance, prefilled ones included."""
        self.copied_live: list[OngoingMigration] = []
        """Live migrations whose requests decode in their source."""
        self.num_aborted = 0
        self.num_flights = 0
        self.num_ticks = 0
        self.moves: list[Migration] = []
        self.run()

    def run(self) -> None:
        num_arrived, has_ticked, has_seen = 0, False, False
        sees = self.age.period_s > 0
        ticks = type(self.placement).tick is not Placement.tick
        while True:
            pending = [self.transfers.next_landing_s, *(one[0] for one in self.ended)]
            pending += [one[0] for one in self.starting]
            if num_arrived < self.num_due:
                pending.append(self.arrival_s(num_arrived))
            starts_s = [engine.advance(-inf) for engine in self.engines]
            first = int(np.argmin(starts_s))
            next_s = min(pending)
            waits = self.homeless or self.parked
            awaited_s = min([inf, *(at_s for at_s, _ in self.coming if waits)])
            is_busy = min(next_s, starts_s[first], awaited_s) < inf
            if has_ticked:  # there is one more if anything was to come after this one
                ticks, has_ticked = is_busy, False
            if has_seen:
                sees, has_seen = is_busy or ticks, False
            next_s = min([next_s, *(at_s for at_s, _ in self.coming + self.dying)])
            if ticks:
                next_s = min(next_s, self.num_ticks * self.placement.tick_s)
            if sees:
                next_s = min(next_s, self.num_snapshots * self.age.period_s)
            if starts_s[first] < next_s:
                self.step(first, starts_s[first])
                continue
            if next_s == inf:
                break
            for engine in self.engines:
                engine.advance(next_s)  # runs nothing: one that can run nothing learns the time
            if landed := self.transfers.land(next_s):
                for number in landed:
                    flight = self.flights.pop(number)
                    if not flight.is_stopped:
                        self.expect(
                            number, flight, self.end_of_step_s(flight.source, next_s), next_s
                        )
                    else:
                        self.land(flight, next_s)
                self.hand_over(next_s)
            now = sorted((one for one in self.starting if one[0] == next_s), key=lambda one: one[1])
            self.starting = [one for one in self.starting if one[0] > next_s]
            for _, number, flight in now:
                self.start(number, flight, next_s)
            self.come_and_die(next_s)
            if sees and next_s == self.num_snapshots * self.age.period_s:
                self.num_snapshots += 1
                self.snapshot = [self.kept_view(engine, next_s) for engine in self.engines]
                self.snapshot_s = next_s
                self.hand_over(next_s)
                has_seen = True
            ended = sorted((one for one in self.ended if one[0] == next_s), key=lambda one: one[:4])
            self.ended = [one for one in self.ended if one[0] > next_s]
            for _, instance, _, order, row, live in ended:
                if order == 2:
                    self.free_client(next_s)
                elif order:
                    self.end_prefill(row, live, instance, next_s)
                elif not live.is_gone:
                    self.end_phase(row, instance, next_s)
            while num_arrived < self.num_due and self.arrival_s(num_arrived) == next_s:
                self.arrive(num_arrived, next_s)
                num_arrived += 1
            if ticks and next_s == self.num_ticks * self.placement.tick_s:
                self.num_ticks += 1
                self.tick(next_s)
                has_ticked = True

    def come_and_die(self, now_s: float) -> None:
        for at_s, instance in sorted(self.coming):
            if at_s == now_s:
                self.dead.remove(instance)
                if self.snapshot:
                    self.snapshot[instance] = self.kept_view(self.engines[instance], now_s)
                homeless, self.homeless = self.homeless, []
                for row, state, is_lost in homeless:
                    self.place(row, state, now_s, is_lost=is_lost)
                self.hand_over(now_s)
        self.coming = [one for one in self.coming if one[0] > now_s]
        for at_s, instance in sorted(self.dying):
            if at_s == now_s:
                self.dead.add(instance)
                self.die(instance, now_s)
        self.dying = [one for one in self.dying if one[0] > now_s]

    def die(self, instance: int, now_s: float) -> None:
        lost: dict[int, RequestState] = {}
        for flight in [one for one in self.left if instance in (one.source, one.to)]:
            lost[flight.row] = flight.state
            self.engines[flight.source].release(flight.state.held_blocks, now_s)
            self.give_up(flight, now_s)
            self.left.remove(flight)
        for flight in [one for one in self.copied_live if instance in (one.source, one.to)]:
            self.give_up(flight, now_s)
            self.copied_live.remove(flight)
            self.num_aborted += 1
        self.parked = [one for one in self.parked if one.source != instance]
        for row, (here, live) in self.at.items():
            if here == instance and not live.is_gone:
                self.engines[instance].withdraw(live)
                lost[row] = live
        for row in sorted(lost):
            self.num_replaced[row] += 1
            self.place(row, lost[row], now_s, is_lost=True)

    def give_up(self, flight: OngoingMigration, now_s: float) -> None:
        self.engines[flight.to].release(flight.reserved_blocks, now_s)
        self.starting = [one for one in self.starting if one[2] is not flight]
        for number, other in list(self.flights.items()):
            if other is flight:
                self.transfers.cancel(now_s, number)
                del self.flights[number]

    def place(self, row: int, state: RequestState, now_s: float, *, is_lost: bool = False) -> bool:
        view = replace(state.view, phase=Phase.WAITING)
        if state.score_delay_s and not is_lost:
            view.score = None
        if view.arrival_s < now_s:
            view.last_token_s = now_s
        if len(self.dead) == len(self.engines):
            self.homeless.append((row, state, is_lost))
            return True
        self.num_fallbacks += self.is_too_old(now_s)
        chosen = self.decider(now_s).place(view, self.views(now_s))
        if self.snapshot:
            noted, context = self.snapshot[chosen], view.prompt_tokens + view.generated_tokens
            noted.num_waiting += 1
            watch = self.placement.watch
            is_thinking = view.thinking_tokens >= view.generated_tokens
            if watch is not None and context <= watch.demote_above_tokens:
                noted.num_thinking += is_thinking
            noted.waiting_prompt_tokens += view.prompt_tokens
            noted.prefill_tokens += context
            noted.prefill_squares += context * context
        state.kv_tokens, state.joins_s = 0, max(now_s, state.joins_s)
        return self.submit(row, chosen, state if is_lost else None, now_s)

    def arrival_s(self, row: int) -> float:
        return self.requests.arrival_s[row] if self.clients is None else self.sent_s[row]

    def free_client(self, now_s: float) -> None:
        if self.num_due < len(self.requests):
            self.sent_s[self.num_due] = now_s
            self.num_due += 1

    def arrive(self, row: int, now_s: float) -> None:
        self.requests.arrival_s[row] = now_s
        state = request_state(self.requests, row)
        if not self.place(row, state, now_s) and self.clients is not None:
            self.sent_s[row] = 0.0
            self.free_client(now_s)

    def step(self, instance: int, start_s: float) -> None:
        """Run one step, and note which of its requests ended their thinking or their prefill."""
        engine = self.engines[instance]
        here = [(row, live) for row, (i, live) in self.at.items() if i == instance]
        here = [(row, live) for row, live in here if not live.is_gone]
        before = {
            row: (generated(live), needs_prefill(live), live.view.preemptions) for row, live in here
        }
        engine.advance(nextafter(start_s, inf))
        now_s = engine.load.now_s
        hands_over = type(self.placement).at_prefill_end is not Placement.at_prefill_end
        for row, live in here:
            count, prefilled, preemptions = before[row]
            prefilled |= live.view.preemptions > preemptions  # evicted, and admitted at once
            grown = generated(live) > count
            if grown and generated(live) == live.reasoning_tokens and not live.is_gone:
                self.ended.append((now_s, instance, live.row, 0, row, live))
            if hands_over and grown and (prefilled or live.is_gone):
                self.ended.append((now_s, instance, live.row, 1, row, live))
            if self.clients is not None and live.is_gone:
                self.ended.append((now_s, instance, live.row, 2, row, live))

    def tick(self, now_s: float) -> None:
        views = [] if self.is_too_old(now_s) else self.views(now_s)
        for change in self.placement.tick(now_s, views) if views else ():
            if isinstance(change, SetRole):
                self.engines[change.instance].own_view.role = change.role
                if self.snapshot:
                    self.snapshot[change.instance].role = change.role
                continue
            row = self.requests.request_id.tolist().index(change.request_id)
            instance, live = self.at[row]
            if live.is_gone or instance == change.to or self.is_copied_live(live):
                continue
            if change.how == "live" and is_decoding(live):
                start_s = self.end_of_step_s(instance, now_s)
                flight = OngoingMigration(row, live, instance, change.to, start_s, is_live=True)
                flight.preemptions = live.view.preemptions
                self.copied_live.append(flight)
                self.num_flights += 1
                self.expect(self.num_flights, flight, start_s, now_s)
            else:
                flight = self.take_out(row, now_s, keeps_kv=change.how != "recompute")
                self.send(flight, change.to, now_s)
        self.hand_over(now_s)

    def is_copied_live(self, live: RequestState) -> bool:
        return any(one.state is live for one in self.copied_live)

    def end_of_step_s(self, instance: int, now_s: float) -> float:
        return max(now_s, self.engines[instance].load.now_s)

    def expect(self, number: int, flight: OngoingMigration, start_s: float, now_s: float) -> None:
        if start_s > now_s:
            self.starting.append((start_s, number, flight))
        else:
            self.start(number, flight, now_s)

    def stage(self, number: int, flight: OngoingMigration, now_s: float) -> None:
        """Copy what is new; the last time from a request that has stopped."""
        live = flight.state
        source, to = self.engines[flight.source], self.engines[flight.to]
        is_here = is_decoding(live) and live.view.preemptions == flight.preemptions
        tokens = live.now_context - 1 if is_here else 0
        if is_here:
            more = -(-tokens // 16) - flight.reserved_blocks
            is_here = to.reserve(more)
        if not is_here:
            self.num_aborted += 1
            self.copied_live.remove(flight)
            to.release(flight.reserved_blocks, now_s)
            return
        flight.reserved_blocks += more
        left = tokens - flight.copied_tokens
        flight.copied_tokens = tokens
        max_stages, last_blocks = request_migrations.MAX_STAGES, request_migrations.LAST_BLOCKS
        is_last = flight.stages == max_stages - 1 or left <= 16 * last_blocks
        if flight.stages and is_last:
            self.copied_live.remove(flight)
            source.withdraw(live, holds_blocks=True)
            flight.blocks = flight.reserved_blocks
            flight.pause_s = now_s
            self.left.append(flight)
            self.book(flight.to, live, 0)
        self.copy(number, flight, left, now_s)

    def end_prefill(self, row: int, live: RequestState, instance: int, now_s: float) -> None:
        role = self.engines[instance].own_view.role
        if not live.is_gone and role == "prefill":
            self.parked.append(self.take_out(row, now_s))
        elif not live.is_gone and role in self.placement.hands_over_from:
            view = live.sync_view()
            chosen = self.decider(now_s).at_prefill_end(view, instance, self.views(now_s))
            if chosen is not None and chosen != instance:
                self.send(self.take_out(row, now_s), chosen, now_s)
        self.hand_over(now_s)

    def hand_over(self, now_s: float) -> None:
        while self.parked:
            flight = self.parked[0]
            view = flight.state.view
            chosen = self.decider(now_s).at_prefill_end(view, flight.source, self.views(now_s))
            if chosen is None:
                return
            self.parked.pop(0)
            self.send(flight, chosen, now_s)

    def take_out(self, row: int, now_s: float, *, keeps_kv: bool = True) -> OngoingMigration:
        instance, live = self.at[row]
        self.engines[instance].withdraw(live, holds_blocks=keeps_kv)
        if not keeps_kv:
            live.kv_tokens = 0
        blocks = -(-live.kv_tokens // 16)
        start_s = max(now_s, live.joins_s)
        flight = OngoingMigration(row, live, instance, instance, start_s, start_s, blocks)
        self.left.append(flight)
        return flight

    def send(self, flight: OngoingMigration, to: int, now_s: float) -> None:
        flight.to = to
        self.book(to, flight.state, flight.blocks)
        self.num_flights += 1
        self.expect(self.num_flights, flight, flight.start_s, now_s)

    def start(self, number: int, flight: OngoingMigration, now_s: float) -> None:
        if not flight.is_stopped:
            self.stage(number, flight, now_s)
        elif flight.to == flight.source:
            self.land(flight, now_s)
        else:
            self.copy(number, flight, 16 * flight.blocks, now_s)

    def copy(self, number: int, flight: OngoingMigration, tokens: int, now_s: float) -> None:
        if not tokens:
            self.land(flight, now_s)
            return
        flight.stages += 1
        self.flights[number] = flight
        num_bytes = tokens * self.transfers.link.kv_bytes_per_token
        self.transfers.start(now_s, number, flight.source, flight.to, num_bytes)

    def submit(
        self, row: int, instance: int, carried: RequestState | None, at_s: float = 0.0
    ) -> bool:
        state = request_state(self.requests, row)
        state.joins_s = max(state.joins_s, at_s)
        is_held = self.engines[instance].submit(state, carried=carried)
        self.at[row] = instance, state
        return is_held

    def end_phase(self, row: int, instance: int, now_s: float) -> None:
        view, watch = self.at[row][1].sync_view(), self.placement.watch
        if self.snapshot and watch is not None:
            noted = self.snapshot[instance]
            was_counted = view.prompt_tokens + view.generated_tokens <= watch.demote_above_tokens
            noted.num_thinking = max(0, noted.num_thinking - was_counted)
            noted.num_fresh_answering += 1
        chosen = self.decider(now_s).at_phase_change(view, instance, self.views(now_s))
        if chosen == instance:
            return
        self.send(self.take_out(row, now_s), chosen, now_s)

    def land(self, flight: OngoingMigration, now_s: float) -> None:
        self.left.remove(flight)
        self.engines[flight.source].release(flight.state.held_blocks, now_s)
        flight.state.joins_s, flight.state.reserved_blocks = now_s, flight.reserved_blocks
        self.submit(flight.row, flight.to, flight.state)
        if flight.to != flight.source:
            self.moves.append(
                Migration(
                    request_id=flight.state.view.request_id,
                    source=flight.source,
                    destination=flight.to,
                    start_s=flight.start_s,
                    end_s=now_s,
                    kv_blocks=flight.blocks,
                    downtime_s=now_s - flight.pause_s,
                    stages=flight.stages,
                )
            )

    def views(self, now_s: float) -> list[InstanceView]:
        living = [i for i in range(len(self.engines)) if i not in self.dead]
        if self.snapshot:
            return [self.snapshot[i] for i in living]
        return [self.view(self.engines[i], now_s) for i in living]

    def kept_view(self, engine: Engine, now_s: float) -> InstanceView:
        decodes = engine.decodes()
        return replace(self.view(engine, now_s), decodes=lambda: decodes)

    def is_too_old(self, now_s: float) -> bool:
        return bool(self.snapshot) and now_s - self.snapshot_s > self.age.max_age_s

    def decider(self, now_s: float) -> Placement:
        return FewestRequests() if self.is_too_old(now_s) else self.placement

    def book(self, to: int, live: RequestState, blocks: int) -> None:
        if self.snapshot:
            self.snapshot[to].num_waiting += 1
            self.snapshot[to].booked_blocks += blocks
            if self.placement.watch is not None:
                count_one(self.snapshot[to], live, self.placement.watch)

    def view(self, engine: Engine, now_s: float) -> InstanceView:
        instance = engine.own_view.instance_id
        lives = [live for i, live in self.at.values() if i == instance and not live.is_gone]
        left = [flight for flight in self.left if not any(one is flight for one in self.parked)]
        coming = [flight for flight in left if flight.to == instance]
        leaving = [flight for flight in self.left if flight.source == instance]
        waiting = [live for live in lives if live.is_waiting or live.is_moving]
        decodes = [
            live
            for live in lives
            if not (live.is_waiting or live.is_moving) and not live.prefill_left
        ]
        reasoning = [live for live in decodes if generated(live) < live.reasoning_tokens]
        residents = [live for live in lives if not live.is_waiting]
        used = sum(engine.memory.blocks_of(live) for live in residents)
        reserving = [one for one in self.left + self.copied_live if one.to == instance]
        used += sum(one.reserved_blocks for one in reserving)
        used += sum(live.reserved_blocks for live in lives)
        view = InstanceView(
            instance_id=instance,
            now_s=engine.load.last_step_end_s,
            used_blocks=used + sum(flight.state.held_blocks for flight in leaving),
            role=engine.own_view.role,
            decodes=engine.decodes,
            num_migrating=sum(
                (instance == one.source) + (instance == one.to)
                for one in self.copied_live + self.left
                if one.is_live
            ),
            total_blocks=engine.instance.kv_blocks,
            block_tokens=16,
            used_host_blocks=sum(live.stored_blocks for live in lives if not live.is_brought),
            num_waiting=len(waiting) + len(coming),
            num_prefilling=len(lives) - len(waiting) - len(decodes),
            num_reasoning=len(reasoning),
            num_answering=len(decodes) - len(reasoning),
            waiting_prompt_tokens=sum(live.view.prompt_tokens for live in waiting),
            stored_prompt_tokens=sum(
                live.view.prompt_tokens for live in lives if live.stored_blocks
            ),
            brought_blocks=sum(live.stored_blocks for live in lives if live.is_brought),
            mean_step_s=engine.load.mean_step_s,
            booked_blocks=sum(flight.blocks - flight.reserved_blocks for flight in coming),
            prefilled_blocks=sum(one.blocks for one in self.parked if one.source == instance),
        )
        if self.placement.watches_prefills:
            for live in lives:
                is_whole = live.is_waiting and not live.stored_blocks
                left = live.context if is_whole else live.prefill_left
                view.prefill_tokens += left
                view.prefill_squares += live.context**2 - (live.context - left) ** 2 if left else 0
            is_running = engine.load.now_s > now_s
            for live, chunk in engine.step.chunks if is_running else ():
                end = live.context - (live.prefill_left or 1)
                view.prefill_tokens += chunk
                view.prefill_squares += end**2 - (end - chunk) ** 2
        if self.placement.watch is not None:
            all_of = lives + [flight.state for flight in coming]
            self.count(view, engine, lives, all_of, self.placement.watch)
        return view

    def count(
        self,
        view: InstanceView,
        engine: Engine,
        lives: list[RequestState],
        all_of: list[RequestState],
        watch: Watch,
    ) -> None:
        for live in all_of:
            count_one(view, live, watch)
        for live in lives:
            answer_s, read_s = engine.token_s(live)[live.reasoning_tokens :], -inf
            for at_s in answer_s:
                read_s = max(at_s, read_s + watch.pace_s)
            if answer_s:
                view.paced_until_s = min(view.paced_until_s, read_s + watch.pace_s)


def count_one(view: InstanceView, live: RequestState, watch: Watch) -> None:
    thinks = generated(live) < max(1, live.reasoning_tokens)
    context = live.view.prompt_tokens + generated(live)
    view.num_thinking += thinks and context <= watch.demote_above_tokens
    answered = generated(live) - live.reasoning_tokens
    view.num_fresh_answering += not thinks and answered < watch.quantum_tokens


class FewestRequests(Placement):
    name = "fewest"

    def place(self, request, instances):
        return self.fewest("prefill", instances)

    def at_prefill_end(self, request, instance, instances):
        if any(view.instance_id == instance and view.role != "prefill" for view in instances):
            return instance
        return self.fewest("decode", instances)

    def fewest(self, role, instances):
        views = [view for view in instances if view.role in (role, "both")] or instances
        return min(views, key=lambda view: view.num_requests).instance_id


def is_decoding(live: RequestState) -> bool:
    is_resident = not (live.is_gone or live.is_waiting or live.is_moving)
    return is_resident and not live.prefill_left


def needs_prefill(live: RequestState) -> bool:
    return live.prefill_left > 0 or (live.is_waiting and not live.stored_blocks)


def generated(live: RequestState) -> int:
    return live.now_context - live.view.prompt_tokens


def assert_runs_are_equal(run: ClusterRun, walked: ReferenceCluster) -> None:
    timeline = run.timeline
    assert list(run.migrations) == walked.moves
    assert run.num_aborted == walked.num_aborted
    assert run.num_fallbacks == walked.num_fallbacks
    np.testing.assert_array_equal(run.num_replaced, walked.num_replaced)
    if walked.clients is not None:
        np.testing.assert_array_equal(timeline.requests.arrival_s, walked.sent_s)
    for row, (instance, live) in walked.at.items():
        record = walked.engines[instance].record
        assert timeline.instance[row] == instance
        token_s = walked.engines[instance].token_s(live)
        np.testing.assert_array_equal(timeline.token_s(row), token_s)
        np.testing.assert_array_equal(timeline.finished_s[row], record.finished_s[live.row])
        np.testing.assert_array_equal(timeline.scheduled_s[row], record.scheduled_s[live.row])
        assert timeline.preemptions[row] == record.preemptions[live.row]
        moves = [one for one in walked.moves if one.request_id == live.view.request_id]
        assert timeline.migrations[row] == len(moves)
        if live.reasoning_tokens < len(token_s):
            assert timeline.first_answer_s[row] == token_s[live.reasoning_tokens]
            if live.reasoning_tokens:
                starts_s = step_starts_s(walked, token_s[live.reasoning_tokens])
                assert timeline.answer_scheduled_s[row] in starts_s


def step_starts_s(walked: ReferenceCluster, end_s: float) -> list[float]:
    """Return when the steps started that ended at this time, in any instance."""
    starts_s = []
    for engine in walked.engines:
        record = engine.record
        if end_s in record.tick_s:
            tick = record.tick_s.index(end_s)
            starts_s.append(record.start_s.get(tick, record.tick_s[tick - 1]))
    return starts_s
