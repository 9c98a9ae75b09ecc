"""The ranks of SLAI in the compiled loop.

They change with time, and are computed only where they decide something: beside prefills, or where
blocks, budget or the limit of decodes are short.
"""

from math import isfinite

import numpy as np

from scheduler_adapters.policies.slai import SLAI as SlaiPolicy
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.compiled.residents import (
    SLAI,
    CompiledPolicy,
    ceil_div,
    count_decode,
    jit,
)
from scheduler_adapters.views import StepRule
from scheduler_adapters.workload.requests import Requests

CRITICAL, PREFILL, DEFERRED = range(3)  # values of `Rank.lane`


def slai_policy(requests: Requests, policy: Policy) -> CompiledPolicy | None:
    """Return the compiled part of SLAI; None for another policy, a subclass or a wrapper."""
    if type(policy) is not SlaiPolicy:
        return None
    rule = policy.rule
    shape = StepRule(rule.max_tokens, rule.max_decodes, max_resident=rule.max_resident)
    names = ("offset_below", "offset_above", "memory_limit", "default_tbt_s")
    numbers = {name: getattr(policy, name) for name in names}
    if rule != shape or not all(map(isfinite, numbers.values())):
        return None
    keys = [requests.prompt_tokens] if policy.order == "spf" else []
    if policy.paying_first:
        keys.append(requests.user_class == "free")
    rows = np.lexsort([np.arange(len(requests)), *keys])
    tbt_s = np.where(np.isnan(requests.tbt_s), policy.default_tbt_s, requests.tbt_s)
    return CompiledPolicy(
        kind=SLAI,
        rule=rule,
        columns={"key": np.argsort(rows), "tbt_s": tbt_s},
        prefill_lane=PREFILL,
        decode_lane=DEFERRED,
        numbers=numbers,
    )


@jit
def needs_ranks(limits, state, num_prefilling, num_decoding, growth, first_tokens):
    """Return whether the next step may hold a prefill, or lack room for a decode.

    `growth`: blocks that all decodes need; `first_tokens`: context of the first waiting request.
    """
    free = limits.blocks - state.used
    return (
        num_prefilling > 0
        or num_decoding > min(limits.budget, limits.max_decodes)
        or growth + limits.headroom > free
        or (
            num_decoding < limits.seats
            and ceil_div(first_tokens, limits.block_tokens) + limits.watermark <= free
        )
    )


@jit
def rank_decodes(requests, lanes, growing, decoding, state, ticks, margins):
    """Compute the last schedulable time of each decode, and whether it is critical."""
    for row in decoding:
        request = requests[row]
        tick = max(request.own_tick, state.common_tick)
        if tick != request.ranked_tick:
            request.ranked_tick = tick
            request.turn = ticks[tick] + request.tbt_s - margins[tick]
        lane = CRITICAL if state.now_s >= request.turn else DEFERRED
        if lane != request.lane:
            count_decode(lanes, growing, request, -1)
            request.lane = lane
            count_decode(lanes, growing, request, 1)
