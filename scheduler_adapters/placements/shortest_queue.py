"""Join the shortest queue: the instance with the fewest requests."""

from collections.abc import Sequence

from scheduler_adapters.placement import InstanceId, Placement, fewest_requests
from scheduler_adapters.views import InstanceView, RequestView


class ShortestQueue(Placement):
    """Fewest requests, then lowest id."""

    name = "shortest-queue"

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return fewest_requests(instances)
