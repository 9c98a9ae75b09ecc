"""Decisions of a router: a placement on the views of replicas, or queue lengths without them."""

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lengthwise.errors import UnsupportedByEngine, require
from scheduler_adapters.placement import Placement, load_placement, overrides
from scheduler_adapters.routers.legs import Leg, Routed
from scheduler_adapters.routers.replica_views import ReplicaViews

log = logging.getLogger(__name__)

_UNUSED: Final = ("at_prefill_end", "tick")


@dataclass(frozen=True, kw_only=True)
class RoutingConfig:
    """A placement, and when it decides."""

    placement: str = "pascal"
    """Name of a placement, or import path package.module:callable."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the placement."""
    routing_only: bool = False
    """Accept a placement that also hands over prefills or acts at ticks, for its routing."""
    max_stale_s: float = 2.0
    """Age of a report above which its replica is left out. Without any fresh report the shortest
    queue decides."""

    def load(self) -> Placement:
        """Return the placement; raise UnsupportedByEngine if no router can do what it needs."""
        require("max_stale_s", self.max_stale_s, self.max_stale_s > 0, "seconds above 0")
        made = load_placement(self.placement, **self.settings)
        if not self.routing_only and (unused := [m for m in _UNUSED if overrides(made, m)]):
            raise UnsupportedByEngine(
                f"placement {made.name!r} has {' and '.join(unused)}, which no router calls yet; "
                "set routing_only to use its other decisions"
            )
        return made


class Routing:
    """Replicas for legs, as a placement decides; the bookings are made with each decision.

    `queue_length`: length of a replica's queue as the engine's own router counts it.
    """

    def __init__(
        self,
        placement: Placement,
        *,
        max_stale_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        queue_length: Callable[[str], int | None] = lambda name: None,
    ) -> None:
        self.placement, self.max_stale_s, self.clock = placement, max_stale_s, clock
        self.queue_length, self.views = queue_length, ReplicaViews(placement.watch)
        self.router = secrets.token_hex(4)
        self.num_failed = self.num_routed = 0
        """Decisions that the placement failed to make, and all decisions."""

    def update(self, reports: Mapping[str, Mapping[str, Any]]) -> None:
        """Take the present replicas, by name, with their newest reports."""
        self.views.update(self.router, reports, self.clock())

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
        here = self.views.replicas.get(leg.current) if leg.kind == "phase_change" else None
        try:  # a user's placement may raise anything; requests are served all the same
            if here is not None and any(view is here.view for view in shown):
                answer = self.placement.at_phase_change(leg.view(now_s), here.instance_id, shown)
            else:
                answer = self.placement.place(leg.view(now_s), shown)
            if answer >= 0 and (chosen := self.views.names[answer]) in candidates:
                return chosen, "placement"
            reason = f"it named instance {answer}"
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        if not self.num_failed:
            name = self.placement.name
            log.error("placement %r failed (%s); queue lengths decide", name, reason)
        self.num_failed += 1
        return self.shortest_queue(candidates), "placement_failed"

    def shortest_queue(self, candidates: Sequence[str]) -> str:
        """Return the replica with the fewest calls in its queue or booked by this router."""
        booked = {name: len(one.bookings) for name, one in self.views.replicas.items()}

        def queue(name: str) -> tuple[int, str]:
            return max(self.queue_length(name) or 0, booked.get(name, 0)), name

        return min(candidates, key=queue)
