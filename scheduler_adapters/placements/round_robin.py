"""Round-robin over instances: each new request is placed in the next one."""

from collections.abc import Sequence

from scheduler_adapters.placement import InstanceId, Placement
from scheduler_adapters.views import InstanceView, RequestView


class RoundRobinPlacement(Placement):
    """Instance i modulo their number for request i."""

    name = "round-robin"

    def __init__(self) -> None:
        self.num_placed = 0

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        chosen = instances[self.num_placed % len(instances)]
        self.num_placed += 1
        return chosen.instance_id
