"""Ranks that never change while a request waits, as columns."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

import numpy as np

from scheduler_adapters.planner.recent_median import RecentMedian
from scheduler_adapters.policies.overtaking_guard import OvertakingGuard
from scheduler_adapters.policy import Policy, ask_rank, ask_rule
from scheduler_adapters.simulator.compiled.residents import GUARDED, STATIC, CompiledPolicy
from scheduler_adapters.simulator.engine.arrivals import request_views
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.views import LoadView, Phase, Rank
from scheduler_adapters.workload.requests import Requests


def static_policy(requests: Requests, policy: Policy, instance: Instance) -> CompiledPolicy | None:
    """Return the compiled part of a policy with static ranks; None if they have another form.

    Waiting requests have keys of one number that may change once, to (); residents have one rank.

    Raises:
        InvalidDecision: the policy raised, or ranked with NaN.
    """
    if not policy.traits.is_static or not len(requests) or requests.score_delay_s.any():
        return None
    rule = ask_rule(policy, LoadView(total_blocks=instance.kv_blocks))
    if rule.displace or rule.offload:
        return None
    keys, starves_s, resident, previous = [], [], None, None
    rejected = instance.cannot_hold(requests.prompt_tokens, requests.output_tokens)
    for ranks in _ranks(requests, policy, rejected.tolist()):
        waiting, prefill, decode = ranks
        if ranks != previous:
            previous, resident = ranks, resident or (waiting.lane, prefill, decode)
            if not _is_plain(waiting) or (waiting.lane, prefill, decode) != resident:
                return None
        keys.append(waiting.key[0] if waiting.key else -inf)
        starves_s.append(waiting.valid_until_s)
    assert resident is not None
    lane, prefill, decode = resident
    prefill_first = decode.lane > lane
    has_order = prefill.lane == lane <= decode.lane and not (prefill_first and rule.mixed)
    if not (has_order and _lasts(prefill) and _lasts(decode) and starves_s == sorted(starves_s)):
        return None
    return CompiledPolicy(
        kind=STATIC,
        rule=rule,
        columns={"key": np.array(keys, np.float64), "starves_s": np.array(starves_s)},
        prefill_lane=0,
        decode_lane=int(prefill_first),
    )


def guarded_policy(requests: Requests, policy: Policy, instance: Instance) -> CompiledPolicy | None:
    """Return the compiled part of static ranks within an overtaking guard; None for others."""
    if type(policy) is not OvertakingGuard:
        return None
    part = static_policy(requests, policy.policy, instance)
    if part is None or np.isfinite(part.columns["starves_s"]).any():
        return None
    limits = {"times": policy.times, "at_least": policy.at_least}
    return replace(part, kind=GUARDED, numbers=limits)


def _is_plain(waiting: Rank) -> bool:
    """Return whether the key is one number, with at most one change: to ()."""
    then = waiting.then
    changes_well = waiting.valid_until_s == inf or (
        then is not None and then.key == () and then.lane == waiting.lane and _lasts(then)
    )
    return len(waiting.key) <= 1 and waiting.valid_tokens == inf and changes_well


def _lasts(rank: Rank) -> bool:
    """Return whether a rank never changes, and the latest received is evicted first."""
    lasts = rank.valid_until_s == rank.valid_tokens == inf
    return lasts and rank.evict_key == () and rank.group is None


def _ranks(
    requests: Requests, policy: Policy, rejected: list[bool]
) -> Iterator[tuple[Rank, Rank, Rank]]:
    """Yield each request's rank while waiting, in prefill and in decode."""
    load, median = LoadView(), RecentMedian()
    has_scores = not np.isnan(requests.score).all()
    for view, is_rejected in zip(request_views(requests), rejected, strict=True):
        if has_scores and not is_rejected:
            median.arrived(view)
        load.now_s = view.arrival_s
        waiting = ask_rank(policy, view, load)
        if waiting.sticky and waiting.then is None:
            yield waiting, waiting, waiting
            continue
        view.phase = Phase.PREFILL
        prefill = ask_rank(policy, view, load)
        view.phase = Phase.ANSWERING
        yield waiting, prefill, ask_rank(policy, view, load)
