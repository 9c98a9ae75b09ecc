"""The interface of placements: which of several instances serves a request.

    class FewestRequests(Placement):
        name = "fewest-requests"

        def place(self, request, instances):
            return min(instances, key=lambda view: view.num_requests).instance_id

is a whole placement. Simulator, router and endpoint picker are to call the same object.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from scheduler_adapters.views import InstanceView, RequestView

InstanceId = int


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """A request is to leave its instance for another one."""

    request_id: str
    to: InstanceId
    keeps_kv: bool = True
    """Whether its KV goes along; else prompt and generated tokens are prefilled anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetRole:
    """An instance is to take new requests for this part of their work only."""

    instance: InstanceId
    role: Literal["prefill", "decode", "both"]


class Placement(ABC):
    """Assigns requests to instances. Pure but for counters: no clock, randomness or I/O."""

    name: ClassVar[str]
    """In tables and messages."""

    @abstractmethod
    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        """Return the instance for a request that arrives; there is at least one."""

    def at_phase_change(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId:
        """Return the instance for a request that ended its thinking in `instance`: to stay."""
        return instance

    def tick(self, now_s: float, instances: Sequence[InstanceView]) -> Sequence[Move | SetRole]:
        """Return what is to change now; asked at regular times."""
        return ()
