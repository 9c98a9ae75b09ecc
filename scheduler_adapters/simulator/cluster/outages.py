"""Instances that die and come: what they lose is placed again.

An instance dies at the end of the step under way, whose tokens still come out. Nothing is placed
there from its death on. A request that was there, or on its way from there or to there, loses its
KV, keeps its tokens, and is placed anew, in order of arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from lengthwise.errors import ConfigError, SchedulingError, at_least, require
from scheduler_adapters.simulator.engine.request_state import Carried
from scheduler_adapters.views import Phase, RequestView

if TYPE_CHECKING:
    from scheduler_adapters.simulator.cluster.cluster import Cluster

CAME, DIED = 2, 3
"""Kinds of events; see `cluster.py` for the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outage:
    """The time in which an instance is dead."""

    instance: int
    at_s: float
    until_s: float = inf

    def __post_init__(self) -> None:
        at_least("instance", self.instance, 0)
        require("at_s", self.at_s, 0 <= self.at_s < inf, "seconds >= 0")
        require("until_s", self.until_s, self.until_s > self.at_s, f"a time after {self.at_s}")


class Outages:
    """Lets instances die and come, and keeps requests for which none is there."""

    def __init__(self, cluster: Cluster, outages: Sequence[Outage]) -> None:
        self.cluster = cluster
        self.num_replaced = np.zeros(len(cluster.requests), dtype=np.int64)
        """How often each request was placed again."""
        self.num_fallbacks = 0
        """Requests placed by the shortest queue."""
        self.is_living = [True] * len(cluster.engines)
        self.homeless: deque[tuple[int, RequestView, Carried | None]] = deque()
        """Requests that wait for an instance to come: row, view, and progress if it has any."""
        in_order = sorted(outages, key=lambda one: (one.instance, one.at_s))
        for one in in_order:
            if one.instance >= len(cluster.engines):
                raise ConfigError(f"{one} of {len(cluster.engines)} instances; name one of them")
            cluster.push(one.at_s, DIED, one.instance, 0, partial(self._die, one.instance))
            if one.until_s < inf:
                cluster.push(one.until_s, CAME, one.instance, 0, partial(self._come, one.instance))
        for before, one in pairwise(in_order):
            if one.instance == before.instance and one.at_s < before.until_s:
                raise ConfigError(f"{one} begins during {before}; let one end before the other")

    def _die(self, instance: int) -> None:
        """Take everything from an instance, and place it anew."""
        cluster = self.cluster
        self.is_living[instance] = False
        cluster.views.hide(instance)
        lost = cluster.moves.lose(instance)
        engine = cluster.engine(instance)
        for live in [live for live in engine.requests if not live.is_gone]:
            carried = engine.withdraw(live)
            lost.append((cluster.rows[instance][live.row], replace(live.view), carried))
        cluster.touched(instance)
        for row, view, carried in sorted(lost, key=itemgetter(0)):
            self.num_replaced[row] += 1
            self.place(row, view, carried)

    def _come(self, instance: int) -> None:
        cluster = self.cluster
        self.is_living[instance] = True
        cluster.views.show(instance)
        for _ in range(len(self.homeless)):
            self.place(*self.homeless.popleft())
        cluster.moves.hand_over_parked()

    def place(self, row: int, view: RequestView, carried: Carried | None) -> bool:
        """Place a request, or keep it until an instance is there; returns whether it may be held.

        With `carried` it comes from an instance that died.
        """
        cluster = self.cluster
        view.phase = Phase.WAITING
        if view.arrival_s < cluster.now_s:
            view.last_token_s = cluster.now_s  # when it is placed, for the placement
        if not cluster.views.shown:
            self.homeless.append((row, view, carried))
            return True
        self.num_fallbacks += cluster.is_blind
        chosen = cluster.ask("place", view)
        cluster.check(chosen, view)
        cluster.views.placed(view, chosen)
        if carried is None:
            has_waited = view.arrival_s < cluster.now_s
            late = Carried(available_s=cluster.now_s) if has_waited else None
            return cluster.submit(row, chosen, late)
        available_s = max(carried.available_s, cluster.now_s)
        carried = replace(carried, kv_tokens=0, held_blocks=0, available_s=available_s)
        cluster.submit_moved(row, chosen, carried)
        return True

    def refuse_homeless(self) -> None:
        """Raise `SchedulingError` if there are requests for which no instance ever came."""
        if self.homeless:
            raise SchedulingError(
                f"{len(self.homeless)} requests are left without an instance, first "
                f"{self.homeless[0][1].request_id!r}: all {len(self.is_living)} are dead; let an "
                "outage end, or add an instance"
            )
