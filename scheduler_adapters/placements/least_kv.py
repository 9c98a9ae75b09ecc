"""Least KV: the instance whose KV memory is needed least, by residents and by who waits for it."""

from collections.abc import Sequence

from scheduler_adapters.placement import InstanceId, Placement
from scheduler_adapters.views import InstanceView, RequestView


class LeastKv(Placement):
    """Smallest share of used blocks, with those that waiting prompts will take; then lowest id."""

    name = "least-kv"

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return min(instances, key=_demand).instance_id


def _demand(view: InstanceView) -> tuple[float, InstanceId]:
    waiting_blocks = view.waiting_prompt_tokens / view.block_tokens
    return (view.used_blocks + waiting_blocks) / view.total_blocks, view.instance_id
