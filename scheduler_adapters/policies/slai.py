"""SLAI: decodes are deferred as long as their time between tokens allows; prefills go first."""

from math import inf
from typing import Literal

from lengthwise.settings import Count, Fraction, NonNegative, Positive, checked
from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import (
    Capability,
    LoadView,
    Phase,
    Rank,
    RequestView,
    StepRule,
    new_rank,
)

_CRITICAL, _PREFILL, _DEFERRED = 0, 1, 2
_LAST_BEFORE_DECODE = Phase.PREFILL


class SLAI(Policy):
    """Critical decodes, then prefills, then the other decodes by their last schedulable time.

    Args:
        order: new requests by shortest prompt ("spf") or arrival ("fcfs").
        offset: safety margin in mean step times. None: `offset_below` while the share of used KV
            blocks is below `memory_limit`, otherwise `offset_above`.
        paying_first: order new requests of the class "free" after all others.
        default_tbt_s: for requests without a target of their own.

    Source: SLAI, its scheduling rule. As in the authors' code, the last schedulable time is fixed
    when a token is emitted, and a decode without a block evicts the newest prefill, else itself.
    """

    name = "slai"
    traits = Traits(requires=frozenset({Capability.DEFER_RUNNING}))

    @checked
    def __init__(
        self,
        *,
        order: Literal["spf", "fcfs"] = "spf",
        offset: NonNegative | None = None,
        offset_below: NonNegative = 5.0,
        offset_above: NonNegative = 10.0,
        memory_limit: Fraction = 0.96,
        paying_first: bool = False,
        max_tokens: int = 512,
        max_resident: int = 128,
        max_decodes: Count = 128,
        default_tbt_s: Positive = 0.2,
    ) -> None:
        self.order = order
        self.offset_below = offset_below if offset is None else offset
        self.offset_above = offset_above if offset is None else offset
        self.memory_limit = memory_limit
        self.paying_first = paying_first
        self.default_tbt_s = default_tbt_s
        self.rule = StepRule(
            max_tokens=max_tokens, max_resident=max_resident, max_decodes=max_decodes
        )

    # simulator/compiled/slai.py has the same rules in arrays; tests compare the two.
    def rank(self, request: RequestView, load: LoadView) -> Rank:
        if request.phase > _LAST_BEFORE_DECODE:
            return self._decode_rank(request, load)
        if request.phase is Phase.WAITING:
            size = (request.prompt_tokens,) if self.order == "spf" else ()
            key = (float(request.user_class == "free"), *size) if self.paying_first else size
            return Rank(key, _PREFILL)
        place = (float(request.admission_number or 0),)
        return Rank(place, _PREFILL, evict_key=place)

    def _decode_rank(self, request: RequestView, load: LoadView) -> Rank:
        tbt_s = self.default_tbt_s if request.tbt_s is None else request.tbt_s
        is_full = load.used_blocks >= self.memory_limit * load.total_blocks
        offset = self.offset_above if is_full else self.offset_below
        last_s = (request.last_token_s or 0.0) + tbt_s - offset * load.mean_step_s
        key = (last_s,)
        critical = new_rank(Rank, (key, _CRITICAL, inf, 1, None, None, tbt_s, False, inf))
        if load.now_s >= last_s:
            return critical
        return new_rank(Rank, (key, _DEFERRED, last_s, 1, critical, None, tbt_s, False, inf))
