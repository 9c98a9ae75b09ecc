"""Baselines: placements with one rule and, but for a counter or a seed, without state."""

from collections.abc import Sequence
from random import Random

from scheduler_adapters.placement import InstanceId, Placement, fewest_requests, of_role, with_room
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


class RandomPlacement(Placement):
    """Any instance with equal probability, as in the RAD paper; equal seeds give equal choices."""

    name = "random"

    def __init__(self, *, seed: int = 0) -> None:
        self.random = Random(seed)

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return instances[self.random.randrange(len(instances))].instance_id


class ShortestQueue(Placement):
    """Fewest requests, then lowest id."""

    name = "shortest-queue"

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return fewest_requests(instances)


class LeastKv(Placement):
    """Smallest share of blocks used, kept outside, booked or needed by prompts; then lowest id."""

    name = "least-kv"

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        def demand(view: InstanceView) -> tuple[float, InstanceId]:
            blocks = view.kv_blocks + view.unstored_prompt_tokens / view.block_tokens
            return blocks / view.total_blocks, view.instance_id

        return min(instances, key=demand).instance_id


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
        roomy = with_room(request, of_role("decode", instances))
        return super().place(request, roomy) if roomy else None
