"""The interface of placements: which of several instances serves a request.

    class FewestRequests(Placement):
        name = "fewest-requests"

        def place(self, request, instances):
            return min(instances, key=lambda view: view.num_requests).instance_id

is a whole placement. It runs in the simulated cluster, by name ("least-kv") or by import path.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lengthwise.settings import Count, Positive, settings
from scheduler_adapters.policy import load_named_class
from scheduler_adapters.views import InstanceView, RequestView, Role

InstanceId = int


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """Move of a request to another instance."""

    request_id: str
    to: InstanceId
    how: Literal["copy", "live", "recompute"] = "copy"
    """copy: the request stops while its KV is copied; live: most KV is copied while it decodes;
    recompute: prompt and generated tokens are prefilled again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetRole:
    """Change of the phase whose new requests an instance serves."""

    instance: InstanceId
    role: Role


@settings
class Watch:
    """Limits by which `InstanceView` counts requests, as PASCAL does."""

    quantum_tokens: Count = 500
    """Answering tokens up to which an answer is fresh."""
    demote_above_tokens: Count = 5000
    """Context above which a thinking request is not counted."""
    pace_s: Positive = 0.1
    """Time in which a reader reads one token; a late token delays all later reading times."""


class Placement(ABC):
    """Assigns requests to instances. No clock and no I/O; randomness from a seed of its own only.

    The views give the time: a request is placed at its `arrival_s` and changes its phase at its
    `last_token_s`. A request of a failed instance is placed at this time, too.
    """

    name: str
    """Name in tables and messages."""
    watch: Watch | None = None
    """Limits for the counts of `InstanceView` that need a watch."""
    watches_prefills: bool = False
    """Needs `InstanceView.prefill_tokens` and `prefill_squares`."""
    tick_s: float = 0.05
    """Time between two ticks."""
    hands_over_from: tuple[Role, ...] = ("prefill",)
    """Roles of the instances from which `at_prefill_end` is called."""
    made_for: tuple[str | None, str | None] = None, None
    """Model and device on which its numbers were measured; others are refused. None: any."""

    @abstractmethod
    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        """Return the instance for a request that arrives; at least one is given."""

    def at_phase_change(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId:
        """Return the instance in which a request answers after its thinking in `instance`."""
        return instance

    def at_prefill_end(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId | None:
        """Return the instance that decodes a request prefilled in `instance`.

        Without an override requests stay. None in an instance of role prefill: no instance yet.
        The request then holds its KV blocks, and the call is repeated, in order of the prefills:
        when a request or a prefill ends, a transfer lands, an instance recovers, a snapshot is
        taken, and at ticks. None in an instance of another role: the request stays.
        """
        return instance

    def tick(self, now_s: float, instances: Sequence[InstanceView]) -> Sequence[Move | SetRole]:
        """Return the changes to be made now; called at regular times."""
        return ()


def overrides(placement: Placement, method: str) -> bool:
    """Return whether a placement has its own `method`."""
    return getattr(type(placement), method) is not getattr(Placement, method)


def of_role(role: Role, instances: Iterable[InstanceView]) -> list[InstanceView]:
    """Return the instances that serve a role; an instance of role both serves either."""
    return [view for view in instances if view.role in (role, "both")]


def fewest_requests(instances: Iterable[InstanceView]) -> InstanceId:
    """Return the instance with the fewest requests, of equals the lowest id."""
    return min(instances, key=lambda view: (view.num_requests, view.instance_id)).instance_id


def with_room(request: RequestView, instances: Iterable[InstanceView]) -> list[InstanceView]:
    """Return the instances whose unclaimed blocks hold the context of a request."""
    context = request.context_tokens
    return [view for view in instances if view.unclaimed_blocks >= view.blocks_of(context)]


PLACEMENTS: dict[str, str] = {
    "round-robin": "scheduler_adapters.placements.baselines:RoundRobinPlacement",
    "random": "scheduler_adapters.placements.baselines:RandomPlacement",
    "shortest-queue": "scheduler_adapters.placements.baselines:ShortestQueue",
    "least-kv": "scheduler_adapters.placements.baselines:LeastKv",
    "memory-aware": "scheduler_adapters.placements.baselines:MemoryAware",
    "distserve": "scheduler_adapters.placements.distserve:DistServe",
    "pascal": "scheduler_adapters.placements.pascal:PascalPlacement",
    "memory-aware-pools": "scheduler_adapters.placements.baselines:MemoryAwarePools",
    "splitwise": "scheduler_adapters.placements.splitwise:Splitwise",
    "phasor": "scheduler_adapters.placements.phasor:Phasor",
}
"""Name -> import path."""


def load_placement(name: str, **settings: Any) -> Placement:
    """Make a placement by its name in `PLACEMENTS` or by the import path `package.module:callable`.

    Raises:
        ConfigError: no such placement (the known ones are listed), or other settings than it takes.
    """
    made: Placement = load_named_class("placement", Placement, PLACEMENTS, name, settings)
    return made
