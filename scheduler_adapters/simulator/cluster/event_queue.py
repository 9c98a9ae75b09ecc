"""The clock of a cluster: future events in order of time.

At one time the order is: ends of transfers, starts of transfers, recoveries of instances, failures,
a snapshot, ends of phases (thinking, prefill and request), arrivals, the tick. Events of one kind
are ordered by their numbers. Steps that start at that time start afterwards.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

LANDED, STARTED, RECOVERED, FAILED, SNAPSHOT, PHASE_ENDED, ARRIVED, TICKED = range(8)
"""Kinds of events in the order in which they happen at one time."""


class EventQueue:
    """Virtual time and the events to come."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.heap: list[tuple[float, int, int, int, Callable[[], None]]] = []
        """(time, kind, number, second number, action)."""

    @property
    def next_s(self) -> float:
        """Time of the next event; inf without any."""
        return self.heap[0][0] if self.heap else inf

    def push(
        self, at_s: float, kind: int, number: int, second: int, action: Callable[[], None]
    ) -> None:
        """Schedule an action."""
        heappush(self.heap, (at_s, kind, number, second, action))

    def run_until(self, at_s: float) -> None:
        """Set the clock to `at_s` and run the events of that time, those that they add included."""
        self.now_s = at_s
        while self.heap and self.heap[0][0] == at_s:
            heappop(self.heap)[-1]()
