"""Round-robin: fewest used quanta of tokens first."""

from dataclasses import replace
from typing import Literal

from lengthwise.errors import require
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

    Args:
        order: "after a quantum a request is put back" is read as fewest quanta first; circular:
            behind all that are there, whatever they have used.
        offload: what is evicted is kept in host memory; else it is computed anew.
    """

    name = "round-robin"
    traits = Traits(requires=frozenset({Capability.EVICT}))

    def __init__(
        self,
        *,
        quantum_tokens: int = 500,
        order: Literal["fewest-quanta", "circular"] = "fewest-quanta",
        offload: bool = False,
    ) -> None:
        require_at_least(1, quantum_tokens=quantum_tokens)
        known = ("fewest-quanta", "circular")
        require("order", repr(order), order in known, "one of " + ", ".join(known))
        self.quantum_tokens = quantum_tokens
        self.is_circular = order == "circular"
        self.rule = _DISPLACE
        if offload:
            self.rule = _DISPLACE_TO_HOST
            self.traits = replace(self.traits, requires=self.traits.requires | {Capability.OFFLOAD})

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        quanta, used = divmod(request.generated_tokens, self.quantum_tokens)
        entered_s = request.enqueued_s((quanta,), load.now_s)
        key = (entered_s,) if self.is_circular else (quanta, entered_s)
        return Rank(key, valid_tokens=self.quantum_tokens - used, evict_key=key)

    def step_rule(self, load: LoadView) -> StepRule:
        return self.rule
