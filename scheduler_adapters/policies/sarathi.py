"""Sarathi-Serve: decodes first, then chunks of prefill up to a token budget."""

from typing import Literal

from lengthwise.settings import checked
from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView, StepRule

_BY_ARRIVAL = Rank(sticky=True)
_RUNNING = Rank()


class Sarathi(Policy):
    """Stall-free batches; new requests by arrival ("fcfs") or shortest prompt first ("spf").

    Source: Sarathi-Serve, Algorithm 3. When a prompt ends before the budget is used, the next
    request follows here; the published loop has no exit for this case.
    """

    name = "sarathi"
    traits = Traits(is_static=True)

    @checked
    def __init__(
        self,
        *,
        order: Literal["fcfs", "spf"] = "fcfs",
        max_tokens: int = 512,
        max_resident: int = 128,
    ) -> None:
        self.order = order
        self.rule = StepRule(max_tokens=max_tokens, max_resident=max_resident)

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        if self.order == "fcfs":
            return _BY_ARRIVAL
        return Rank((request.prompt_tokens,)) if request.phase is Phase.WAITING else _RUNNING
