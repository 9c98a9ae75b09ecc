"""Round-robin: fewest used quanta of tokens first."""

from dataclasses import replace

from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import (
    Capability,
    LoadView,
    Rank,
    RequestView,
    StepRule,
    require_at_least,
)

_DISPLACE = StepRule(displace=True)
_DISPLACE_TO_HOST = StepRule(displace=True, offload=True)


class RoundRobin(Policy):
    """Key (quanta used, time of joining that queue); the last in that order gives up KV blocks.

    "After a quantum a request is put back" is read as fewest quanta first. What is evicted
    is computed anew, or kept in host memory (`offload`).
    """

    name = "round-robin"
    traits = Traits(requires=frozenset({Capability.EVICT}))

    def __init__(self, *, quantum_tokens: int = 500, offload: bool = False) -> None:
        require_at_least(1, quantum_tokens=quantum_tokens)
        self.quantum_tokens = quantum_tokens
        self.rule = _DISPLACE
        if offload:
            self.rule = _DISPLACE_TO_HOST
            self.traits = replace(self.traits, requires=self.traits.requires | {Capability.OFFLOAD})

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        quanta, used = divmod(request.generated_tokens, self.quantum_tokens)
        key = (quanta, request.enqueued_s((quanta,), load.now_s))
        return Rank(key, valid_tokens=self.quantum_tokens - used, evict_key=key)

    def step_rule(self, load: LoadView) -> StepRule:
        return self.rule
