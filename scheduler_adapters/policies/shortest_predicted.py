"""Shortest predicted job first: the waiting queue in score order (PARS, its baselines, the oracle).

The source of the scores names the policy: PARS's pairwise ranker, a pointwise regression, a
listwise ranker, or the true lengths (oracle). A request without a score ranks by the median of the
scores before it, between the shorter and the longer half. Among themselves such requests rank by
arrival, as do all requests before the first score.

Source: PARS, its serving section. Only the waiting queue is reordered: running requests rank as
under FCFS, and a preempted request re-enters the queue with its first score.
"""

from math import inf
from typing import Any, Literal

from lengthwise.errors import require
from scheduler_adapters.policies.overtaking_guard import OvertakingGuard
from scheduler_adapters.policy import Policy, PolicyWrapper, Traits
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView, new_rank

_BY_ARRIVAL = Rank()


class ShortestPredicted(Policy):
    """Lowest score first; constant scores give FCFS, and the true lengths the oracle."""

    name = "shortest-predicted"
    traits = Traits(is_static=True)

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        score = request.median_score if request.score is None else request.score
        if score is None or request.phase is not Phase.WAITING:
            return _BY_ARRIVAL
        return Rank((score,))


class StarvationGuard(PolicyWrapper):
    """Policy whose requests rank first, FCFS, once `after_s` have passed since their arrival.

    The boost lasts until admission. Preemption does not restart the wait.

    Source: PARS, its serving section; 120 s there.
    """

    def __init__(self, policy: Policy, *, after_s: float = 120.0) -> None:
        require("after_s", after_s, after_s >= 0, "seconds >= 0, or no guard at all")
        super().__init__(policy, suffix="+guard")
        self.after_s = after_s

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        rank = self.policy.rank(request, load)
        if request.phase is not Phase.WAITING:
            # A sticky rank would still hold after a preemption, when the guard applies again.
            return rank._replace(sticky=False) if rank.sticky else rank
        starves_s = request.arrival_s + self.after_s
        key, lane, until_s, tokens, _, evict_key, group, _, started = rank
        starving = new_rank(Rank, ((), lane, inf, inf, None, evict_key, None, False, inf))
        if load.now_s >= starves_s:
            return starving
        then = starving if until_s > starves_s or started < inf else None
        until_s = min(until_s, starves_s)
        return new_rank(Rank, (key, lane, until_s, tokens, then, evict_key, group, False, started))


GuardKind = Literal["waiting", "overtaking", "none"]


def pars(guard: GuardKind | None = None, **limits: Any) -> Policy:
    """Return PARS: shortest predicted first, with a guard of long requests.

    The guard "overtaking" limits the later arrivals that start before a request, by `limits`.
    The guard "waiting" is the paper's: its limit is `starve_after_s`, 120 s; None: no guard. It is
    the default where that limit is given, else the default is "overtaking".
    """
    if guard is None:
        guard = "waiting" if "starve_after_s" in limits else "overtaking"
    if guard == "overtaking":
        return OvertakingGuard(ShortestPredicted(), **limits)
    require("guard", guard, guard in ("waiting", "none"), "waiting, overtaking or none")
    after_s = limits.pop("starve_after_s", 120.0)
    require("limits", limits, not limits, "these only with guard overtaking")
    if after_s is None or guard == "none":
        return ShortestPredicted()
    return StarvationGuard(ShortestPredicted(), after_s=after_s)


def pars_paper(**settings: Any) -> Policy:
    """Return PARS with the guard of its paper: 120 s of waiting."""
    return pars(**{"guard": "waiting", **settings})
