"""Memory-aware placement: the instance with the most free KV memory."""

from collections.abc import Sequence

from scheduler_adapters.placement import InstanceId, Placement
from scheduler_adapters.views import InstanceView, RequestView


class MemoryAware(Placement):
    """Most free KV blocks, then lowest id; who waits for blocks is not seen.

    Source: the motivation of the Phasor paper.
    """

    name = "memory-aware"

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return min(instances, key=lambda view: (-view.free_blocks, view.instance_id)).instance_id
