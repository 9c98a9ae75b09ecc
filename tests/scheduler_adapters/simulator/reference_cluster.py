"""A cluster written as plainly as possible: one step of one instance at a time, least start first.

Views are counted anew for every decision by walking all requests. The fast cluster must give the
same decisions and the same times. Rates of transfers are those of `links.Transfers`, which has
tests of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, nextafter

import numpy as np

from scheduler_adapters.placement import Placement, SetRole, Watch
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.cluster import ClusterRun
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.live import Carried, Live, simulated_requests
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.links import Fabric, Transfers
from scheduler_adapters.views import InstanceView
from scheduler_adapters.workload.requests import Requests


@dataclass(eq=False)
class Flight:
    row: int
    live: Live
    carried: Carried
    source: int
    to: int
    start_s: float
    blocks: int


class ReferenceCluster:
    def __init__(
        self,
        requests: Requests,
        placement: Placement,
        make_policy: Callable[[], Policy],
        instances: Sequence[Instance],
        fabric: Fabric | None = None,
        roles: Sequence[str] | None = None,
    ) -> None:
        self.requests = list(simulated_requests(requests))
        self.placement = placement
        self.engines = [
            Engine(make_policy(), instance, skip_ahead=False, instance_id=i)
            for i, instance in enumerate(instances)
        ]
        for engine, role in zip(self.engines, roles or [], strict=False):
            engine.own_view.role = role
        self.transfers = Transfers(fabric or Fabric(kv_bytes_per_token=1))
        self.flights: dict[int, Flight] = {}
        self.at: dict[int, tuple[int, Live]] = {}
        """Where each request is or was last."""
        self.ended: list[tuple[float, int, int, int, int, Live]] = []
        """(time, instance, row of its engine, order, row, request) of what is to be told."""
        self.starting: list[tuple[float, int, Flight]] = []
        """(time, number, flight) of transfers that wait for the end of a step."""
        self.parked: list[Flight] = []
        self.left: list[Flight] = []
        """All that are in no instance, the parked included."""
        self.num_flights = 0
        self.num_ticks = 0
        self.moves: list[tuple[str, int, int, float, float, int]] = []
        self.run()

    def run(self) -> None:
        num_arrived, has_ticked = 0, False
        ticks = type(self.placement).tick is not Placement.tick
        while True:
            pending = [self.transfers.next_landing_s, *(one[0] for one in self.ended)]
            pending += [one[0] for one in self.starting]
            if num_arrived < len(self.requests):
                pending.append(self.requests[num_arrived].arrival_s)
            starts_s = [engine.advance(-inf) for engine in self.engines]
            first = int(np.argmin(starts_s))
            next_s = min(pending)
            if has_ticked:  # there is one more if anything was to come after this one
                ticks, has_ticked = min(next_s, starts_s[first]) < inf, False
            if ticks:
                next_s = min(next_s, self.num_ticks * self.placement.tick_s)
            if starts_s[first] < next_s:
                self.step(first, starts_s[first])
                continue
            if next_s == inf:
                break
            if landed := self.transfers.land(next_s):
                for number in landed:
                    self.land(self.flights.pop(number), next_s)
                self.hand_over(next_s)
            now = sorted((one for one in self.starting if one[0] == next_s), key=lambda one: one[1])
            self.starting = [one for one in self.starting if one[0] > next_s]
            for _, number, flight in now:
                self.start(number, flight, next_s)
            ended = sorted((one for one in self.ended if one[0] == next_s), key=lambda one: one[:4])
            self.ended = [one for one in self.ended if one[0] > next_s]
            for _, instance, _, order, row, live in ended:
                if order:
                    self.end_prefill(row, live, instance, next_s)
                elif not live.is_gone:
                    self.end_phase(row, instance, next_s)
            while (
                num_arrived < len(self.requests) and self.requests[num_arrived].arrival_s == next_s
            ):
                request = self.requests[num_arrived].view(num_arrived)
                chosen = self.placement.place(request, self.views(next_s))
                self.submit(num_arrived, chosen, None)
                num_arrived += 1
            if ticks and next_s == self.num_ticks * self.placement.tick_s:
                self.num_ticks += 1
                self.tick(next_s)
                has_ticked = True

    def step(self, instance: int, start_s: float) -> None:
        """Run one step, and note which of its requests ended their thinking or their prefill."""
        engine = self.engines[instance]
        here = [(row, live) for row, (i, live) in self.at.items() if i == instance]
        here = [(row, live) for row, live in here if not live.is_gone]
        before = {
            row: (generated(live), needs_prefill(live), live.view.preemptions) for row, live in here
        }
        engine.advance(nextafter(start_s, inf))
        now_s = engine.state.load.now_s
        hands_over = type(self.placement).at_prefill_end is not Placement.at_prefill_end
        for row, live in here:
            count, prefilled, preemptions = before[row]
            prefilled |= live.view.preemptions > preemptions  # evicted, and admitted at once
            grown = generated(live) > count
            if grown and generated(live) == live.reasoning_tokens and not live.is_gone:
                self.ended.append((now_s, instance, live.row, 0, row, live))
            if hands_over and grown and (prefilled or live.is_gone):
                self.ended.append((now_s, instance, live.row, 1, row, live))

    def tick(self, now_s: float) -> None:
        for change in self.placement.tick(now_s, self.views(now_s)):
            if isinstance(change, SetRole):
                self.engines[change.instance].own_view.role = change.role
                continue
            row = [one.request_id for one in self.requests].index(change.request_id)
            instance, live = self.at[row]
            if not live.is_gone and instance != change.to:
                flight = self.take_out(row, now_s, keeps_kv=change.keeps_kv)
                self.send(flight, change.to, now_s)
        self.hand_over(now_s)

    def end_prefill(self, row: int, live: Live, instance: int, now_s: float) -> None:
        if not live.is_gone and self.engines[instance].own_view.role == "prefill":
            self.parked.append(self.take_out(row, now_s))
        self.hand_over(now_s)

    def hand_over(self, now_s: float) -> None:
        while self.parked:
            flight = self.parked[0]
            view = flight.live.view
            chosen = self.placement.at_prefill_end(view, flight.source, self.views(now_s))
            if chosen is None:
                return
            self.parked.pop(0)
            self.send(flight, chosen, now_s)

    def take_out(self, row: int, now_s: float, *, keeps_kv: bool = True) -> Flight:
        instance, live = self.at[row]
        engine = self.engines[instance]
        carried = engine.withdraw(live.view.request_id, holds_blocks=keeps_kv)
        if not keeps_kv:
            carried = replace(carried, kv_tokens=0)
        blocks = -(-carried.kv_tokens // 16)
        start_s = max(now_s, carried.available_s)
        flight = Flight(row, live, carried, instance, instance, start_s, blocks)
        self.left.append(flight)
        return flight

    def send(self, flight: Flight, to: int, now_s: float) -> None:
        flight.to = to
        self.num_flights += 1
        if flight.start_s > now_s:
            self.starting.append((flight.start_s, self.num_flights, flight))
        else:
            self.start(self.num_flights, flight, now_s)

    def start(self, number: int, flight: Flight, now_s: float) -> None:
        if flight.to == flight.source or not flight.blocks:
            self.land(flight, now_s)
            return
        self.flights[number] = flight
        num_bytes = flight.blocks * 16 * self.transfers.fabric.kv_bytes_per_token
        self.transfers.start(now_s, number, flight.source, flight.to, num_bytes)

    def submit(self, row: int, instance: int, carried: Carried | None) -> None:
        engine = self.engines[instance]
        engine.submit(self.requests[row], carried=carried)
        self.at[row] = instance, engine.state.lives[-1]

    def end_phase(self, row: int, instance: int, now_s: float) -> None:
        live = self.at[row][1]
        view = live.sync_view()
        chosen = self.placement.at_phase_change(view, instance, self.views(now_s))
        if chosen == instance:
            return
        self.send(self.take_out(row, now_s), chosen, now_s)

    def land(self, flight: Flight, now_s: float) -> None:
        self.left.remove(flight)
        self.engines[flight.source].release(flight.carried.held_blocks, now_s)
        self.submit(flight.row, flight.to, replace(flight.carried, available_s=now_s))
        if flight.to != flight.source:
            request_id = self.requests[flight.row].request_id
            self.moves.append(
                (request_id, flight.source, flight.to, flight.start_s, now_s, flight.blocks)
            )

    def views(self, now_s: float) -> list[InstanceView]:
        return [self.view(engine) for engine in self.engines]

    def view(self, engine: Engine) -> InstanceView:
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
        view = InstanceView(
            instance_id=instance,
            now_s=engine.state.load.last_step_end_s,
            used_blocks=used + sum(flight.carried.held_blocks for flight in leaving),
            role=engine.own_view.role,
            total_blocks=engine.state.instance.kv_blocks,
            block_tokens=16,
            used_host_blocks=sum(live.stored_blocks for live in lives if not live.is_brought),
            num_waiting=len(waiting) + len(coming),
            num_prefilling=len(lives) - len(waiting) - len(decodes),
            num_reasoning=len(reasoning),
            num_answering=len(decodes) - len(reasoning),
            waiting_prompt_tokens=sum(live.view.prompt_tokens for live in waiting),
            mean_step_s=engine.state.load.mean_step_s,
            booked_blocks=sum(flight.blocks for flight in coming),
        )
        if self.placement.watch is not None:
            all_of = lives + [flight.live for flight in coming]
            self.count(view, engine, lives, all_of, self.placement.watch)
        return view

    def count(
        self,
        view: InstanceView,
        engine: Engine,
        lives: list[Live],
        all_of: list[Live],
        watch: Watch,
    ) -> None:
        for live in all_of:
            thinks = generated(live) < max(1, live.reasoning_tokens)
            context = live.view.prompt_tokens + generated(live)
            view.num_thinking += thinks and context <= watch.demote_above_tokens
            answered = generated(live) - live.reasoning_tokens
            view.num_fresh_answering += not thinks and answered < watch.quantum_tokens
        for live in lives:
            read_s = -inf
            for token_s in engine.token_s(live)[live.reasoning_tokens :]:
                read_s = max(token_s, read_s + watch.pace_s)
            if read_s > -inf:
                view.paced_until_s = min(view.paced_until_s, read_s + watch.pace_s)


def needs_prefill(live: Live) -> bool:
    return live.prefill_left > 0 or (live.is_waiting and not live.stored_blocks)


def generated(live: Live) -> int:
    return live.now_context - live.view.prompt_tokens


def assert_runs_are_equal(run: ClusterRun, walked: ReferenceCluster) -> None:
    timeline = run.timeline
    moves = [
        (one.request_id, one.source, one.destination, one.start_s, one.end_s, one.kv_blocks)
        for one in run.migrations
    ]
    assert moves == walked.moves
    for row, (instance, live) in walked.at.items():
        record = walked.engines[instance].state.record
        assert timeline.instance[row] == instance
        token_s = walked.engines[instance].token_s(live)
        np.testing.assert_array_equal(timeline.token_s(row), token_s)
        np.testing.assert_array_equal(timeline.finished_s[row], record.finished_s[live.row])
        np.testing.assert_array_equal(timeline.scheduled_s[row], record.scheduled_s[live.row])
        assert timeline.preemptions[row] == record.preemptions[live.row]
        assert timeline.migrations[row] == sum(
            one[0] == live.view.request_id for one in walked.moves
        )
        if live.reasoning_tokens < len(token_s):
            assert timeline.first_answer_s[row] == token_s[live.reasoning_tokens]
