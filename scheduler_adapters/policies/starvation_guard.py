"""A limit on waiting time, after which a request precedes all others in order of arrival."""

from math import inf

from lengthwise.errors import require
from scheduler_adapters.policy import Policy, PolicyWrapper
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView, new_rank


class StarvationGuard(PolicyWrapper):
    """Policy whose requests rank first, FCFS, once `after_s` have passed since their arrival.

    The boost lasts until admission. Preemption does not restart the wait.

    Source: PARS, Algorithm 1; 120 s there.
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
        key, lane, until_s, tokens, _, evict_key, group, _ = rank
        starving = new_rank(Rank, ((), lane, inf, inf, None, evict_key, None, False))
        if load.now_s >= starves_s:
            return starving
        then = starving if until_s > starves_s else None
        until_s = min(until_s, starves_s)
        return new_rank(Rank, (key, lane, until_s, tokens, then, evict_key, group, False))
