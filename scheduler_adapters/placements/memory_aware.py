"""Memory-aware placement: the instance with the most free KV memory."""

from collections.abc import Sequence

from scheduler_adapters.placement import InstanceId, Placement, of_role
from scheduler_adapters.views import InstanceView, RequestView


class MemoryAware(Placement):
    """Most free KV blocks, then lowest id; the blocks that waiting requests need are ignored.

    Source: the motivation of the Phasor paper.
    """

    name = "memory-aware"

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return min(instances, key=lambda view: (-view.free_blocks, view.instance_id)).instance_id


class MemoryAwarePools(MemoryAware):
    """Most free KV blocks among prefill instances, then among decode instances with room."""

    name = "memory-aware-pools"

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return super().place(request, of_role("prefill", instances) or instances)

    def at_prefill_end(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId | None:
        context = request.context_tokens
        pool = of_role("decode", instances)
        roomy = [view for view in pool if view.unclaimed_blocks >= view.blocks_of(context)]
        return super().place(request, roomy) if roomy else None
