"""Join the shortest queue: the instance with the fewest requests."""

from collections.abc import Sequence

from scheduler_adapters.placement import InstanceId, Placement
from scheduler_adapters.views import InstanceView, RequestView


class ShortestQueue(Placement):
    """Fewest requests, then lowest id.

    Args:
        only_waiting: count those without KV blocks only: Phasor's baseline by queue length.
    """

    name = "shortest-queue"

    def __init__(self, *, only_waiting: bool = False) -> None:
        self.only_waiting = only_waiting

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return min(instances, key=self._length).instance_id

    def _length(self, view: InstanceView) -> tuple[int, InstanceId]:
        length = view.num_waiting if self.only_waiting else view.num_requests
        return length, view.instance_id
