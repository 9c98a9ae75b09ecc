"""FCFS, the default order of serving engines."""

from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import Capability, LoadView, Rank, RequestView, StepRule

_SERVE_BY_ARRIVAL = Rank(sticky=True)


class FCFS(Policy):
    """Serves requests in the order in which the engine received them.

    Args:
        offload: keep the KV of evicted requests, the newest, in host memory and resume these
            requests first, as PASCAL's baseline does; by default evicted KV is recomputed.
    """

    name = "fcfs"
    traits = Traits(is_static=True)

    def __init__(self, *, offload: bool = False) -> None:
        if offload:
            self.name = "fcfs-offload"
            self.traits = Traits(requires=frozenset({Capability.OFFLOAD}), is_static=True)
            self.rule = StepRule(offload=True)

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return _SERVE_BY_ARRIVAL
