"""Round-robin: fewest used quanta of tokens first."""

from dataclasses import replace

from lengthwise.settings import Count, checked
from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import (
    Capability,
    LoadView,
    Rank,
    RequestView,
    StepRule,
)


class RoundRobin(Policy):
    """Key (quanta used, time of entering that queue); the greatest key loses its KV blocks first.

    Args:
        offload: keep evicted KV in host memory; by default it is recomputed.

    Source: PASCAL, the baseline RR; "put back after a quantum" is read as fewest quanta first.
    """

    name = "round-robin"
    traits = Traits(requires=frozenset({Capability.EVICT}))

    @checked
    def __init__(self, *, quantum_tokens: Count = 500, offload: bool = False) -> None:
        self.quantum_tokens = quantum_tokens
        self.rule = StepRule(displace=True, offload=offload)
        if offload:
            self.traits = replace(self.traits, requires=self.traits.requires | {Capability.OFFLOAD})

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        quanta, used = divmod(request.generated_tokens, self.quantum_tokens)
        key = (quanta, request.enqueued_s((quanta,), load.now_s))
        return Rank(key, valid_tokens=self.quantum_tokens - used, evict_key=key)
