"""A limit of waiting time, after which a request is served by arrival, before all others."""

from dataclasses import replace
from math import inf
from typing import Literal

from lengthwise.errors import ConfigError
from scheduler_adapters.policy import Policy, PolicyWrapper
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView, new_rank


class StarvationGuard(PolicyWrapper):
    """Wraps a policy: a request that waited `after_s` ranks first, FCFS among its like.

    The boost lasts until admission. `since` says where the wait starts: at
    "arrival", never reset, or at the last "enqueue", so that preemption starts a new wait.

    Source: PARS, Algorithm 1; 120 s there.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        after_s: float = 120.0,
        since: Literal["arrival", "enqueue"] = "arrival",
    ) -> None:
        if not after_s >= 0:
            raise ConfigError(f"after_s is {after_s}; use seconds >= 0, or no guard at all")
        if since not in ("arrival", "enqueue"):
            raise ConfigError(f"since is {since!r}; use 'arrival' or 'enqueue'")
        super().__init__(policy, suffix="+guard")
        self.after_s = after_s
        self.since = since
        is_static = policy.traits.is_static and since == "arrival"
        self.traits = replace(policy.traits, is_static=is_static)

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        # Not sticky: the guard has to be asked again when a request comes back to the queue.
        rank = self.policy.rank(request, load)
        if request.phase is not Phase.WAITING:
            return rank._replace(sticky=False) if rank.sticky else rank
        starves_s = self._waits_since_s(request, load) + self.after_s
        key, lane, until_s, tokens, _, evict_key, group, _ = rank
        starving = new_rank(Rank, ((), lane, inf, inf, None, evict_key, None, False))
        if load.now_s >= starves_s:
            return starving
        then = starving if until_s > starves_s else None
        until_s = min(until_s, starves_s)
        return new_rank(Rank, (key, lane, until_s, tokens, then, evict_key, group, False))

    def _waits_since_s(self, request: RequestView, load: LoadView) -> float:
        if self.since == "arrival":
            return request.arrival_s
        return request.enqueued_s((request.preemptions,), load.now_s)
