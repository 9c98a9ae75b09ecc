"""The clock of a cluster: future events, and engines run only as far as the next decision needs.

A decision at time t sees every instance after all its steps that started before t. For arrivals and
ticks `Engine.advance(t)` does that. The end of a phase is found only by running its step. So the
instance in which a phase may end first runs first, up to the earliest time at which a phase may end
elsewhere (`Engine.quiet_until_s`). When a phase ends at e, every other instance is advanced to e.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf, nextafter

import numpy as np

from scheduler_adapters.simulator.cluster.instance_telemetry import Telemetry
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.simulated_request import Carried, simulated_request
from scheduler_adapters.workload.requests import Requests


class ClusterClock:
    """Virtual time of several engines, future events, and the requests of each engine.

    Args:
        requests: all requests of the run; a closed loop writes their arrivals when it sends them.
        watches_phases: ends of phases are events.
        heeds_ends: ends of requests are events, too.
    """

    LANDED, STARTED, RECOVERED, FAILED, SNAPSHOT, PHASE_ENDED, ARRIVED, TICKED = range(8)
    """Kinds of events in the order in which they happen at one time: ends and starts of transfers,
    recoveries and failures of instances, snapshots, ends of phases, arrivals, ticks."""

    def __init__(
        self,
        requests: Requests,
        telemetry: Sequence[Telemetry],
        *,
        watches_phases: bool,
        heeds_ends: bool,
    ) -> None:
        self.requests, self.telemetry = requests, telemetry
        self.watches_phases, self.heeds_ends = watches_phases, heeds_ends
        self.engines = [one.engine for one in telemetry]
        self.now_s = 0.0
        self.events: list[tuple[float, int, int, int, Callable[[], None]]] = []
        """Heap of (time, kind, number, second number, action)."""
        self.next_s = [-inf] * len(telemetry)
        """Start of the next step, by instance; -inf where it is not known."""
        self.quiet_s = [-inf] * len(telemetry)
        """Time up to which no phase ends, by instance; -inf where it is not known."""
        self.quiet: list[tuple[float, int]] = []
        """Heap of (no phase ends up to this time, instance); void where `quiet_s` differs."""
        self.outdated = set(range(len(telemetry)))
        """Instances whose views are to be renewed."""
        self.rows: list[list[int]] = [[] for _ in telemetry]
        """Rows of the requests that each instance has received, by row of its engine."""
        self.last_at = np.full((len(requests), 2), -1)
        """Last place of each request: instance, and row of its engine."""

    def push(
        self, at_s: float, kind: int, number: int, action: Callable[[], None], *, second: int = 0
    ) -> None:
        """Schedule an event; at equal times and kinds the lesser numbers precede."""
        heappush(self.events, (at_s, kind, number, second, action))

    def run(self) -> None:
        while (at_s := self._advance_to_next_event()) < inf:
            self.now_s = at_s
            while self.events and self.events[0][0] == at_s:
                heappop(self.events)[-1]()
        for engine in self.engines:
            engine.advance(inf)

    def _advance_to_next_event(self) -> float:
        """Run the instances in which a phase may end before the next event; return its time."""
        events, quiet = self.events, self.quiet
        while True:
            at_s = events[0][0] if events else inf
            while quiet and self.quiet_s[quiet[0][1]] != quiet[0][0]:
                heappop(quiet)
            if not quiet or quiet[0][0] >= at_s:
                return at_s
            _, instance = heappop(quiet)
            self.quiet_s[instance] = -inf
            # The step that is next here may always be run: elsewhere none starts earlier.
            others_s = max(quiet[0][0] if quiet else inf, nextafter(self.next_s[instance], inf))
            self.advance(instance, min(at_s, others_s))

    def advance(self, instance: int, until_s: float) -> None:
        """Run an instance's steps that start before `until_s`."""
        engine = self.engines[instance]
        next_s = self.next_s[instance] = engine.advance(until_s)
        self.outdated.add(instance)
        if self.watches_phases and next_s >= self.quiet_s[instance]:
            quiet_s = engine.quiet_until_s(next_s, heeds_ends=self.heeds_ends)
            self.quiet_s[instance] = quiet_s
            if quiet_s < inf:
                heappush(self.quiet, (quiet_s, instance))

    def current(self, instance: int) -> Engine:
        """Return an engine that has run all its steps that start before now."""
        engine = self.engines[instance]
        # A stalled engine notes the time: a later change lets nothing start earlier.
        if self.next_s[instance] < self.now_s or engine.is_stalled:
            self.advance(instance, self.now_s)
        return engine

    def changed(self, instance: int) -> None:
        """Note that an engine was changed from outside."""
        self.next_s[instance] = self.quiet_s[instance] = -inf
        self.outdated.add(instance)
        if self.watches_phases:
            self.advance(instance, self.now_s)

    def submit(self, row: int, instance: int, carried: Carried | None) -> bool:
        """Submit a request to an instance; return whether its memory can ever hold the request."""
        engine, own_rows = self.engines[instance], self.rows[instance]
        is_held = engine.submit(simulated_request(self.requests, row), carried=carried)
        self.last_at[row] = instance, len(own_rows)
        own_rows.append(row)
        self.telemetry[instance].submitted(engine.requests[-1])
        self.changed(instance)
        return is_held

    def release(self, instance: int, blocks: int) -> None:
        """Free blocks of an instance that a leaving or an expected request has held."""
        self.current(instance).release(blocks, self.now_s)
        self.changed(instance)
