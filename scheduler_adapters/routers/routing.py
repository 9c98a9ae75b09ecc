"""Decisions of a router: a placement on the views of replicas, or queue lengths without them."""

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from math import inf
from typing import Any

from lengthwise.errors import UnsupportedByEngine
from lengthwise.settings import Positive, settings
from scheduler_adapters.placement import InstanceId, Placement, SetRole, load_placement, overrides
from scheduler_adapters.routers.legs import Leg, Routed
from scheduler_adapters.routers.replica_views import Replica, ReplicaViews
from scheduler_adapters.views import InstanceView, Role

log = logging.getLogger(__name__)


@settings
class RoutingConfig:
    """A placement, and when it decides."""

    placement: str = "pascal"
    """Name of a placement, or import path package.module:callable."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the placement."""
    routing_only: bool = False
    """Use only the routing of a placement that also hands over prefills or acts at ticks."""
    max_stale_s: Positive = 2.0
    """Age of a report above which its replica is left out. Without any fresh report the shortest
    queue decides."""

    def load(self) -> Placement:
        """Return the placement; raise UnsupportedByEngine if it needs pools and there are none."""
        made = load_placement(self.placement, **self.settings)
        used = [method for method in ("at_prefill_end", "tick") if overrides(made, method)]
        if used and not (self.routing_only or getattr(self, "roles", False)):
            raise UnsupportedByEngine(
                f"placement {made.name!r} has {' and '.join(used)}, which need replicas with roles "
                "behind a gateway on Ray; set routing_only to use its other decisions"
            )
        return made


@settings
class MovingConfig(RoutingConfig):
    """A placement, and the pools in which it may move requests."""

    roles: Sequence[Role] = ()
    """Role of each replica by its rank, for placements with pools: [prefill, decode, both]. Further
    replicas serve both. Empty: no pools."""


class Routing:
    """Replicas for legs, as a placement decides; the bookings are made with each decision.

    Args:
        roles: first roles of the replicas, by rank; empty: the placement moves nothing at ticks.
        queue_length: length of a replica's queue as the engine's own router counts it.
    """

    def __init__(
        self,
        placement: Placement,
        *,
        roles: Sequence[Role] = (),
        max_stale_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        queue_length: Callable[[str], int | None] = lambda name: None,
    ) -> None:
        self.placement, self.max_stale_s, self.clock = placement, max_stale_s, clock
        self.queue_length, self.views = queue_length, ReplicaViews(placement.watch, roles)
        self.ticks = bool(roles) and overrides(placement, "tick")
        self.ticked_s = -inf
        self.moves: dict[str, InstanceId] = {}
        """Instances to which requests move at their next move points, as ticks decided."""
        self.router = secrets.token_hex(4)
        self.num_failed = self.num_routed = 0
        """Decisions that the placement failed to make, and all decisions."""

    def update(self, reports: Mapping[str, Mapping[str, Any]]) -> None:
        """Take the present replicas, by name, with their newest reports."""
        now_s = self.clock()
        self.views.update(self.router, reports, now_s)
        if self.ticks and now_s >= self.ticked_s + self.placement.tick_s:
            self.ticked_s = now_s
            self._tick(now_s)

    def _tick(self, now_s: float) -> None:
        """Let the placement set roles, and note its moves for the next points of the requests."""
        shown = self.views.fresh(list(self.views.replicas), now_s - self.max_stale_s)
        places = {one.request_id: view.instance_id for view in shown for one in view.decodes()}
        self.moves = {name: to for name, to in self.moves.items() if places.get(name, to) != to}
        busy = [place for name, to in self.moves.items() for place in (to, places[name])]
        for view in shown:
            view.num_migrating = busy.count(view.instance_id)
        try:
            for change in self.placement.tick(now_s, shown) if shown else ():
                if isinstance(change, SetRole):
                    self.views.set_role(change.instance, change.role)
                else:
                    self.moves[change.request_id] = change.to
        except Exception as error:
            self._failed(f"{type(error).__name__}: {error}")

    def choose(self, call: str, leg: Leg, candidates: Sequence[str]) -> str:
        """Return the replica for the leg of a call, and book it in place of an earlier choice."""
        now_s = self.clock()
        if leg.excluded:
            candidates = [name for name in candidates if name not in leg.excluded] or candidates
        if leg.routed is not None:
            self.views.cancel(call)
        elif leg.kind == "phase_change":
            self.views.thinking_ended(leg.current, leg)
        chosen, decided_by = self._decide(leg, candidates, now_s)
        self.num_routed += 1
        leg.routed = Routed(self.router, self.num_routed, chosen, decided_by)
        self.views.book(chosen, call, leg, self.num_routed, now_s)
        return chosen

    def _decide(self, leg: Leg, candidates: Sequence[str], now_s: float) -> tuple[str, str]:
        if not (shown := self.views.fresh(candidates, now_s - self.max_stale_s)):
            return self.shortest_queue(candidates), "no_fresh_report"
        here = self.views.replicas.get(leg.current)
        if here is None or all(view is not here.view for view in shown):
            here = None  # dead, or silent
        try:  # a user's placement may raise anything; requests are served all the same
            if (answer := self._answer(leg, here, shown, now_s)) is None:
                return leg.current, "waits"
            if answer >= 0 and (chosen := self.views.names[answer]) in candidates:
                return chosen, "placement"
            reason = f"it named instance {answer}"
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        self._failed(reason)
        return self.shortest_queue(candidates), "placement_failed"

    def _answer(
        self, leg: Leg, here: Replica | None, shown: Sequence[InstanceView], now_s: float
    ) -> InstanceId | None:
        """Return the placement's choice; None: a prefilled request waits where it is."""
        view, placement = leg.view(now_s), self.placement
        if here is None:
            return placement.place(view, shown)
        if leg.kind == "phase_change":
            return placement.at_phase_change(view, here.instance_id, shown)
        if leg.kind == "prefilled" and here.role in placement.hands_over_from:
            return placement.at_prefill_end(view, here.instance_id, shown)
        return self.moves.pop(leg.request_id, here.instance_id)

    def _failed(self, reason: str) -> None:
        if not self.num_failed:
            log.error("placement %r failed (%s); queue lengths decide", self.placement.name, reason)
        self.num_failed += 1

    def shortest_queue(self, candidates: Sequence[str]) -> str:
        """Return the replica with the fewest calls, as queued, or as last reported and booked."""
        known = {name: one.num_legs for name, one in self.views.replicas.items()}

        def queue(name: str) -> tuple[int, str]:
            return max(self.queue_length(name) or 0, known.get(name, 0)), name

        return min(candidates, key=queue)
