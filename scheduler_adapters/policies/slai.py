"""SLAI: decodes wait as long as their time between tokens allows; prefills go first."""

from math import inf, nextafter
from typing import Literal

from lengthwise.errors import ConfigError
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
        offset: safety margin in mean step times; None: `offset_below`, or `offset_above` from
            `memory_limit` on.
        paying_first: whether the class "free" goes after the others.
        evaluate: "frozen" fixes the last schedulable time when a token came, as the authors' code
            does; "recompute" follows the text and moves it with the mean step time.
        default_tbt_s: for requests without a target of their own.

    Source: SLAI, Algorithm 1. A decode without a block evicts the newest prefill, else itself, as
    in the authors' code.
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
        evaluate: Literal["frozen", "recompute"] = "frozen",
        max_tokens: int = 512,
        max_resident: int = 128,
        max_decodes: int = 128,
        default_tbt_s: float = 0.2,
    ) -> None:
        if order not in ("spf", "fcfs"):
            raise ConfigError(f"order is {order!r}; use 'spf' or 'fcfs'")
        if evaluate not in ("frozen", "recompute"):
            raise ConfigError(f"evaluate is {evaluate!r}; use 'frozen' or 'recompute'")
        if not default_tbt_s > 0:
            raise ConfigError(f"default_tbt_s is {default_tbt_s}; use seconds above 0")
        if not 0 <= memory_limit <= 1:
            raise ConfigError(f"memory_limit is {memory_limit}; use a fraction, 0 to 1")
        offsets = {"offset_below": offset_below, "offset_above": offset_above}
        for name, steps in offsets.items() if offset is None else [("offset", offset)]:
            if not steps >= 0:
                raise ConfigError(f"{name} is {steps}; use a number of mean step times, 0 or more")
        require_at_least(1, max_decodes=max_decodes)
        self.order = order
        self.offset_below = offset_below if offset is None else offset
        self.offset_above = offset_above if offset is None else offset
        self.memory_limit = memory_limit
        self.paying_first = paying_first
        self.is_frozen = evaluate == "frozen"
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

    def step_rule(self, load: LoadView) -> StepRule:
        return self.rule

    def _decode_rank(self, request: RequestView, load: LoadView) -> Rank:
        tbt_s = self.default_tbt_s if request.tbt_s is None else request.tbt_s
        is_full = load.used_blocks >= self.memory_limit * load.total_blocks
        offset = self.offset_above if is_full else self.offset_below
        due_s = (request.last_token_s or 0.0) + tbt_s
        last_s = due_s - offset * load.mean_step_s
        is_critical = load.now_s >= last_s
        if not self.is_frozen:
            lane = _CRITICAL if is_critical else _DEFERRED
            again_s = nextafter(load.now_s, inf)  # the mean step time moves with every step
            return Rank((due_s,), lane, again_s, 1, evict_key=None, group=tbt_s)
        key = (last_s,)
        critical = new_rank(Rank, (key, _CRITICAL, inf, 1, None, None, tbt_s, False))
        if is_critical:
            return critical
        return new_rank(Rank, (key, _DEFERRED, last_s, 1, critical, None, tbt_s, False))
