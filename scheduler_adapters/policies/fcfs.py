"""FCFS, the default order of serving engines."""

from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import Capability, LoadView, Rank, RequestView, StepRule

_SERVE_BY_ARRIVAL = Rank(sticky=True)
_TO_HOST = StepRule(offload=True)


class FCFS(Policy):
    """Serves requests in the order in which the engine received them."""

    name = "fcfs"
    traits = Traits(is_static=True)

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return _SERVE_BY_ARRIVAL


class OffloadingFCFS(FCFS):
    """FCFS that evicts the newest requests to host memory and resumes them first.

    Source: PASCAL, the baseline FCFS.
    """

    name = "fcfs-offload"
    traits = Traits(requires=frozenset({Capability.OFFLOAD}), is_static=True)

    def step_rule(self, load: LoadView) -> StepRule:
        return _TO_HOST


def fcfs(*, offload: bool = False) -> Policy:
    """Return FCFS; evicted KV is recomputed, or kept in host memory (`offload`)."""
    return OffloadingFCFS() if offload else FCFS()
