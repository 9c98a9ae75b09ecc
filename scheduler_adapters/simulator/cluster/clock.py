"""The event loop of a cluster: pop the next event, handle it, push what follows from it.

A decision at time t sees every instance after all its steps that started before t. For arrivals and
ticks `Engine.advance(t)` does that. The end of a phase is found only by running its step. So the
instance in which a phase may end first runs first, up to the earliest time at which a phase may end
elsewhere (`Engine.quiet_until_s`). When a phase ends at e, every other instance is advanced to e.
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf, nextafter
from typing import Any

from scheduler_adapters.simulator.cluster.cluster_instance import ClusterInstance
from scheduler_adapters.simulator.engine.engine import Engine

LANDED, STARTED, RECOVERED, FAILED, SNAPSHOT, PHASE_ENDED, ARRIVED, TICKED = range(8)
"""Kinds of events in the order in which they happen at one time: ends and starts of transfers,
recoveries and failures of instances, snapshots, ends of phases, arrivals, ticks."""
Handlers = Mapping[int, Callable[[Any], None]]
"""By kind, the function that handles the subject of an event."""


class ClusterClock:
    """Virtual time of several instances, and the future events between them.

    Args:
        watches_phases: ends of phases are events.
        heeds_ends: ends of requests are events, too.
    """

    def __init__(
        self, instances: Sequence[ClusterInstance], *, watches_phases: bool, heeds_ends: bool
    ) -> None:
        self.instances = instances
        self.watches_phases, self.heeds_ends = watches_phases, heeds_ends
        self.now_s = 0.0
        self.events: list[tuple[float, int, int, int, Any]] = []
        """Heap of (time, kind, number, second number, subject)."""
        self.quiet: list[tuple[float, int]] = []
        """Heap of (no phase ends up to this time, instance); void where `quiet_s` differs."""

    def push(self, at_s: float, kind: int, number: int, subject: Any, *, second: int = 0) -> None:
        """Schedule an event; at equal times and kinds the lesser numbers precede."""
        heappush(self.events, (at_s, kind, number, second, subject))

    def run(self, handlers: Handlers) -> None:
        """Handle all events, and run all steps."""
        while self._advance_to_next_event() < inf:
            self.now_s, kind, _, _, subject = heappop(self.events)
            handlers[kind](subject)
        for instance in self.instances:
            instance.engine.advance(inf)

    def _advance_to_next_event(self) -> float:
        """Run the instances in which a phase may end before the next event; return its time."""
        events, quiet, instances = self.events, self.quiet, self.instances
        while True:
            at_s = events[0][0] if events else inf
            while quiet and instances[quiet[0][1]].quiet_s != quiet[0][0]:
                heappop(quiet)
            if not quiet or quiet[0][0] >= at_s:
                return at_s
            instance = instances[heappop(quiet)[1]]
            instance.quiet_s = -inf
            # The step that is next here may always be run: elsewhere none starts earlier.
            others_s = max(quiet[0][0] if quiet else inf, nextafter(instance.next_s, inf))
            self.advance(instance, min(at_s, others_s))

    def advance(self, instance: ClusterInstance, until_s: float) -> None:
        """Run an instance's steps that start before `until_s`."""
        instance.advance(until_s)
        if self.watches_phases and instance.next_s >= instance.quiet_s:
            next_s = instance.next_s
            quiet_s = instance.engine.quiet_until_s(next_s, heeds_ends=self.heeds_ends)
            instance.quiet_s = quiet_s
            if quiet_s < inf:
                heappush(self.quiet, (quiet_s, instance.number))

    def current(self, number: int) -> Engine:
        """Return an engine that has run all its steps that start before now."""
        instance = self.instances[number]
        # A stalled engine notes the time: a later change lets nothing start earlier.
        if instance.next_s < self.now_s or instance.engine.is_stalled:
            self.advance(instance, self.now_s)
        return instance.engine

    def changed(self, number: int) -> None:
        """Note that an engine was changed from outside."""
        instance = self.instances[number]
        instance.next_s = instance.quiet_s = -inf
        instance.is_outdated = True
        if self.watches_phases:
            self.advance(instance, self.now_s)

    def release(self, number: int, blocks: int) -> None:
        """Free blocks of an instance that a leaving or an expected request has held."""
        self.current(number).release(blocks, self.now_s)
        self.changed(number)
