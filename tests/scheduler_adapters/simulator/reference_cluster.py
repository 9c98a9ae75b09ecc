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

from scheduler_adapters.placement import Placement, Watch
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.cluster import ClusterRun
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.live import Carried, Live, simulated_requests
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.links import Fabric, Transfers
from scheduler_adapters.views import InstanceView
from scheduler_adapters.workload.requests import Requests


@dataclass
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
    ) -> None:
        self.requests = list(simulated_requests(requests))
        self.placement = placement
        self.engines = [
            Engine(make_policy(), instance, skip_ahead=False, instance_id=i)
            for i, instance in enumerate(instances)
        ]
        self.transfers = Transfers(fabric or Fabric(kv_bytes_per_token=1))
        self.flights: dict[int, Flight] = {}
        self.at: dict[int, tuple[int, Live]] = {}
        """Where each request is or was last."""
        self.ended: list[tuple[int, int, float]] = []
        """(instance, row, time) of phases that have ended and were not told yet."""
        self.moves: list[tuple[str, int, int, float, float, int]] = []
        self.run()

    def run(self) -> None:
        num_arrived = 0
        while True:
            next_s = inf
            if num_arrived < len(self.requests):
                next_s = self.requests[num_arrived].arrival_s
            next_s = min([next_s, self.transfers.next_landing_s, *(one[2] for one in self.ended)])
            starts_s = [engine.advance(-inf) for engine in self.engines]
            first = int(np.argmin(starts_s))
            if starts_s[first] < next_s:
                self.step(first, starts_s[first])
                continue
            if next_s == inf:
                break
            for number in self.transfers.land(next_s):
                self.land(self.flights.pop(number), next_s)
            now, self.ended = (
                [one for one in self.ended if one[2] == next_s],
                [one for one in self.ended if one[2] > next_s],
            )
            for instance, row, _ in sorted(now):
                self.end_phase(row, instance, next_s)
            while (
                num_arrived < len(self.requests) and self.requests[num_arrived].arrival_s == next_s
            ):
                request = self.requests[num_arrived].view(num_arrived)
                chosen = self.placement.place(request, self.views(next_s))
                self.submit(num_arrived, chosen, None)
                num_arrived += 1

    def step(self, instance: int, start_s: float) -> None:
        """Run one step, and note which of its requests ended their thinking."""
        engine = self.engines[instance]
        here = [(row, live) for row, (i, live) in self.at.items() if i == instance]
        thought = {row for row, live in here if generated(live) < live.reasoning_tokens}
        engine.advance(nextafter(start_s, inf))
        for row, live in here:
            ended = row in thought and generated(live) == live.reasoning_tokens
            if ended and not live.is_gone:
                self.ended.append((instance, row, engine.state.load.now_s))

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
        engine = self.engines[instance]
        carried = engine.withdraw(view.request_id, holds_blocks=True)
        blocks = -(-carried.kv_tokens // 16)
        number = len(self.moves) + len(self.flights) + 1
        self.flights[number] = Flight(row, live, carried, instance, chosen, now_s, blocks)
        num_bytes = blocks * 16 * self.transfers.fabric.kv_bytes_per_token
        self.transfers.start(now_s, number, instance, chosen, num_bytes)

    def land(self, flight: Flight, now_s: float) -> None:
        self.engines[flight.source].release(flight.carried.held_blocks, now_s)
        self.submit(flight.row, flight.to, replace(flight.carried, available_s=now_s))
        request_id = self.requests[flight.row].request_id
        self.moves.append(
            (request_id, flight.source, flight.to, flight.start_s, now_s, flight.blocks)
        )

    def views(self, now_s: float) -> list[InstanceView]:
        return [self.view(engine) for engine in self.engines]

    def view(self, engine: Engine) -> InstanceView:
        instance = engine.own_view.instance_id
        lives = [live for i, live in self.at.values() if i == instance and not live.is_gone]
        lives = [live for live in lives if not any(f.live is live for f in self.flights.values())]
        coming = [flight for flight in self.flights.values() if flight.to == instance]
        leaving = [flight for flight in self.flights.values() if flight.source == instance]
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
            now_s=engine.state.load.now_s,
            used_blocks=used + sum(flight.carried.held_blocks for flight in leaving),
            total_blocks=engine.state.instance.kv_blocks,
            block_tokens=16,
            used_host_blocks=sum(live.stored_blocks for live in lives if not live.is_brought),
            num_waiting=len(waiting) + len(coming),
            num_prefilling=len(lives) - len(waiting) - len(decodes),
            num_reasoning=len(reasoning),
            num_answering=len(decodes) - len(reasoning),
            waiting_prompt_tokens=sum(live.view.prompt_tokens for live in waiting),
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
