"""SLAI: decodes are deferred as long as their time between tokens allows; prefills go first."""

from math import inf
from typing import Literal

from lengthwise.errors import require
from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import (
    Capability,
    LoadView,
    Phase,
    Rank,
    RequestView,
    StepRule,
    new_rank,
    require_at_least,
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

    Source: SLAI, Algorithm 1. As in the authors' code, the last schedulable time is fixed when a
    token is emitted, and a decode without a block evicts the newest prefill, else itself.
    """

    name = "slai"
    traits = Traits(requires=frozenset({Capability.DEFER_RUNNING}))

    def __init__(
        self,
        *,
        order: Literal["spf", "fcfs"] = "spf",
        offset: float | None = None,
        offset_below: float = 5.0,
        offset_above: float = 10.0,
        memory_limit: float = 0.96,
        paying_first: bool = False,
        max_tokens: int = 512,
        max_resident: int = 128,
        max_decodes: int = 128,
        default_tbt_s: float = 0.2,
    ) -> None:
        require("order", repr(order), order in ("spf", "fcfs"), "'spf' or 'fcfs'")
        require("default_tbt_s", default_tbt_s, default_tbt_s > 0, "seconds above 0")
        require("memory_limit", memory_limit, 0 <= memory_limit <= 1, "a fraction, 0 to 1")
        offsets = {"offset_below": offset_below, "offset_above": offset_above}
        for name, steps in offsets.items() if offset is None else [("offset", offset)]:
            require(name, steps, steps >= 0, "a number of mean step times, 0 or more")
        require_at_least(1, max_decodes=max_decodes)
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
        critical = new_rank(Rank, (key, _CRITICAL, inf, 1, None, None, tbt_s, False))
        if load.now_s >= last_s:
            return critical
        return new_rank(Rank, (key, _DEFERRED, last_s, 1, critical, None, tbt_s, False))
