"""Random placement: any instance, each as likely; the routing of the RAD paper."""

from collections.abc import Sequence
from random import Random

from scheduler_adapters.placement import InstanceId, Placement
from scheduler_adapters.views import InstanceView, RequestView


class RandomPlacement(Placement):
    """An instance drawn at random for each request; equal seeds give equal choices."""

    name = "random"

    def __init__(self, *, seed: int = 0) -> None:
        self.random = Random(seed)

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        return instances[self.random.randrange(len(instances))].instance_id
