"""The interface of placements: which of several instances serves a request.

    class FewestRequests(Placement):
        name = "fewest-requests"

        def place(self, request, instances):
            return min(instances, key=lambda view: view.num_requests).instance_id

is a whole placement. It runs in the simulated cluster by name (`load_placement("least-kv")`) or by
import path; router and endpoint picker are to call the same object.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lengthwise.errors import require
from scheduler_adapters.policy import load_named_class
from scheduler_adapters.views import InstanceView, RequestView, Role, require_at_least

InstanceId = int
MoveHow = Literal["copy", "live", "recompute"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """A request is to leave its instance for another one."""

    request_id: str
    to: InstanceId
    how: MoveHow = "copy"
    """copy: it stops while its KV is copied; live: most is copied while it decodes; recompute: the
    KV stays behind, so prompt and generated tokens are prefilled anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetRole:
    """An instance is to take new requests for this part of their work only."""

    instance: InstanceId
    role: Role


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """Limits by which instances count requests for `InstanceView`, as PASCAL does."""

    quantum_tokens: int = 500
    """Answering tokens up to which a request is fresh."""
    demote_above_tokens: int = 5000
    """Context above which a request that thinks is not counted."""
    pace_s: float = 0.1
    """Time in which a reader reads one token; a late token delays all later reading times."""
    ttfat_s: float | None = None
    """Time from the end of reasoning after which a reader without any token waits; None: never."""

    def __post_init__(self) -> None:
        require_at_least(1, quantum_tokens=self.quantum_tokens)
        require_at_least(1, demote_above_tokens=self.demote_above_tokens)
        require("pace_s", self.pace_s, self.pace_s > 0, "seconds above 0")
        ttfat_s = self.ttfat_s
        require("ttfat_s", ttfat_s, ttfat_s is None or ttfat_s >= 0, "seconds >= 0, or null")


class Placement(ABC):
    """Assigns requests to instances. No clock and no I/O; randomness from an own seed only.

    Times are those of the views: a request is placed at its `arrival_s`, and changes its phase at
    its `last_token_s`. One that is placed later than it arrived, since an instance has died, is
    placed at its `last_token_s` too.
    """

    name: str
    """In tables and messages."""
    watch: Watch | None = None
    """For placements that read the counts which need one."""
    watches_prefills: bool = False
    """Whether views are to say how much is to be prefilled (`InstanceView.prefill_tokens`)."""
    tick_s: float = 0.05
    """Time between two ticks."""
    hands_over_from: tuple[Role, ...] = ("prefill",)
    """Roles of the instances for which `at_prefill_end` is asked."""
    made_for: tuple[str | None, str | None] = None, None
    """Model and device that its numbers were measured on; others are refused. None: any."""

    @abstractmethod
    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        """Return the instance for a request that arrives; there is at least one."""

    def at_phase_change(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId:
        """Return the instance for a request that ended its thinking in `instance`: to stay."""
        return instance

    def at_prefill_end(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId | None:
        """Return where a request goes on that was prefilled in an instance of role prefill.

        None: nowhere yet. It holds its KV blocks, and it is asked for again, the first one first,
        whenever a request ends, a prefill ends, a transfer lands, an instance comes, views that
        have an age are renewed, or at a tick. Where this is not overridden requests stay. In
        instances of other roles, where `hands_over_from` has them, None lets it stay.
        """
        return instance

    def tick(self, now_s: float, instances: Sequence[InstanceView]) -> Sequence[Move | SetRole]:
        """Return what is to change now; asked at regular times."""
        return ()


def of_role(role: Role, instances: Iterable[InstanceView]) -> list[InstanceView]:
    """Return the instances that have a role, or have both; none where all of these are dead."""
    return [view for view in instances if view.role in (role, "both")]


def fewest_requests(instances: Iterable[InstanceView]) -> InstanceId:
    """Return the instance with the fewest requests, of equals the lowest id."""
    return min(instances, key=lambda view: (view.num_requests, view.instance_id)).instance_id


PLACEMENTS: dict[str, str] = {
    "round-robin": "scheduler_adapters.placements.round_robin:RoundRobinPlacement",
    "random": "scheduler_adapters.placements.random_choice:RandomPlacement",
    "shortest-queue": "scheduler_adapters.placements.shortest_queue:ShortestQueue",
    "least-kv": "scheduler_adapters.placements.least_kv:LeastKv",
    "memory-aware": "scheduler_adapters.placements.memory_aware:MemoryAware",
    "distserve": "scheduler_adapters.placements.distserve:DistServe",
    "pascal": "scheduler_adapters.placements.pascal:PascalPlacement",
    "memory-aware-pools": "scheduler_adapters.placements.memory_aware:MemoryAwarePools",
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
