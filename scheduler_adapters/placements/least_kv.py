"""Least KV: the instance with the least KV, including the KV of waiting prompts."""

from collections.abc import Sequence

from scheduler_adapters.placement import InstanceId, Placement
from scheduler_adapters.views import InstanceView, RequestView


class LeastKv(Placement):
    """Smallest share of blocks used, kept outside, booked or needed by prompts; then lowest id."""

    name = "least-kv"

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return min(instances, key=_demand).instance_id


def _demand(view: InstanceView) -> tuple[float, InstanceId]:
    blocks = view.kv_blocks + view.unstored_prompt_tokens / view.block_tokens
    return blocks / view.total_blocks, view.instance_id
