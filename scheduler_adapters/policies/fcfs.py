"""FCFS, the default order of serving engines, and the way back to it."""

from dataclasses import replace

from scheduler_adapters.policy import Policy, PolicyWrapper, Traits
from scheduler_adapters.views import Capability, LoadView, Phase, Rank, RequestView, StepRule

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


class ArrivalFallback(PolicyWrapper):
    """Policy whose waiting requests rank by arrival, each in its lane, while it is active.

    Between two steps an engine calls `switch`, and ranks its waiting requests anew after a change.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.traits = replace(policy.traits, is_static=False)
        self.is_active = self.is_wanted = False
        """Any thread may set what is wanted."""

    def switch(self) -> bool:
        """Do what is wanted; return whether this is a change."""
        before, self.is_active = self.is_active, self.is_wanted
        return self.is_active != before

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        rank = self.policy.rank(request, load)
        if not self.is_active or request.phase is not Phase.WAITING:
            return rank
        return Rank(lane=rank.lane, evict_key=rank.evict_key)
