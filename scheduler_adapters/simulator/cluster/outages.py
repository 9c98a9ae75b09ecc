"""Failures of instances: the requests that an instance loses are placed again.

An instance fails at the end of the step under way, whose tokens are still emitted. Nothing is
placed there from its failure on. A request in it, or in transfer from or to it, loses its KV, keeps
its tokens, and is placed again in order of arrival.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import inf
from operator import itemgetter

import numpy as np

from lengthwise.errors import ConfigError, at_least, require
from scheduler_adapters.simulator.cluster.request_migrations import RequestMigrations


@dataclass(frozen=True, kw_only=True, slots=True)
class Outage:
    """Time in which an instance is dead."""

    instance: int
    at_s: float
    until_s: float = inf

    def __post_init__(self) -> None:
        at_least("instance", self.instance, 0)
        require("at_s", self.at_s, 0 <= self.at_s < inf, "seconds >= 0")
        require("until_s", self.until_s, self.until_s > self.at_s, f"a time after {self.at_s}")


class Outages:
    """Failures and recoveries of the instances of a cluster."""

    def __init__(self, migrations: RequestMigrations, outages: Sequence[Outage]) -> None:
        self.migrations, self.calls, self.clock = migrations, migrations.calls, migrations.clock
        self.num_replaced = np.zeros(len(self.clock.requests), dtype=np.int64)
        """Number of repeated placements of each request."""
        clock, count = self.clock, len(self.clock.engines)
        in_order = sorted(outages, key=lambda one: (one.instance, one.at_s))
        for one in in_order:
            number = one.instance
            if number >= count:
                raise ConfigError(f"{one} of {count} instances; name one of them")
            clock.push(one.at_s, clock.FAILED, number, partial(self._fail, number))
            if one.until_s < inf:
                clock.push(one.until_s, clock.RECOVERED, number, partial(self._recover, number))
        for before, one in pairwise(in_order):
            if one.instance == before.instance and one.at_s < before.until_s:
                raise ConfigError(f"{one} begins during {before}; let one end before the other")

    def _fail(self, instance: int) -> None:
        clock = self.clock
        self.calls.views.set_living(instance, False)
        lost = self.migrations.lose(instance)
        engine = clock.current(instance)
        for state in [state for state in engine.requests if not state.is_gone]:
            carried = engine.withdraw(state)
            lost.append((clock.rows[instance][state.row], replace(state.view), carried))
        clock.changed(instance)
        for row, view, carried in sorted(lost, key=itemgetter(0)):
            self.num_replaced[row] += 1
            self.calls.place(row, view, carried)

    def _recover(self, instance: int) -> None:
        self.calls.views.set_living(instance, True)
        for _ in range(len(self.calls.unplaced)):
            self.calls.place(*self.calls.unplaced.popleft())
        self.migrations.hand_over_prefilled()
