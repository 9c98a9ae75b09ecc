"""Lets no request wait for ever: after a while it is served as FCFS would, before all others."""

from __future__ import annotations

from typing import Literal

from scheduler_adapters.policy import Policy
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView, StepRule
from scoring_service.errors import ConfigError


class StarvationGuard(Policy):
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
        self.policy = policy
        self.after_s = after_s
        self.since = since
        # Instance attributes shadow the class's: a wrapper is what it wraps, and guarded.
        self.name = f"{policy.name}+guard"  # type: ignore[misc]
        self.requires = policy.requires  # type: ignore[misc]
        self.keeps_time = policy.keeps_time  # type: ignore[misc]
        self.sees_thinking = policy.sees_thinking  # type: ignore[misc]
        self.is_static = policy.is_static and since == "arrival"  # type: ignore[misc]

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        # Not sticky: the guard has to be asked again when a request comes back to the queue.
        rank = self.policy.rank(request, load)
        if rank.sticky:
            rank = rank._replace(sticky=False)
        if request.phase is not Phase.WAITING:
            return rank
        starves_s = self._waits_since_s(request, load) + self.after_s
        starving = Rank((), rank.lane, evict_key=rank.evict_key)
        if load.now_s >= starves_s:
            return starving
        if rank.valid_until_s <= starves_s:
            return rank._replace(then=None)
        return rank._replace(valid_until_s=starves_s, then=starving)

    def step_rule(self, load: LoadView) -> StepRule:
        return self.policy.step_rule(load)

    def _waits_since_s(self, request: RequestView, load: LoadView) -> float:
        if self.since == "arrival":
            return request.arrival_s
        return request.enqueued_s((request.preemptions,), load.now_s)
