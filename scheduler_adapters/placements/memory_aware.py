"""Memory-aware placement: the instance with the most free KV memory."""

from collections.abc import Sequence

from scheduler_adapters.placement import InstanceId, Placement, of_role
from scheduler_adapters.views import InstanceView, RequestView


class MemoryAware(Placement):
    """Most free KV blocks, then lowest id; who waits for blocks is not seen.

    Source: the motivation of the Phasor paper.
    """

    name = "memory-aware"

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return min(instances, key=lambda view: (-view.free_blocks, view.instance_id)).instance_id


class MemoryAwarePools(MemoryAware):
    """The same among prefill instances, and then among decode instances with room."""

    name = "memory-aware-pools"

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return super().place(request, of_role("prefill", instances))

    def at_prefill_end(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId | None:
        chosen = super().place(request, of_role("decode", instances))
        view = next(view for view in instances if view.instance_id == chosen)
        has_room = view.unclaimed_blocks >= view.blocks_of(request.context_tokens)
        return chosen if has_room else None
