"""Shortest predicted job first: the waiting queue in score order (PARS, its baselines, the oracle).

The source of the scores names the policy: PARS's pairwise ranker, a pointwise regression, a
listwise ranker, or the true lengths (oracle). A request without a score ranks by the median of the
scores before it, between the shorter and the longer half. Among themselves such requests rank by
arrival, as do all requests before the first score.

Source: PARS, Algorithm 1. Only the waiting queue is reordered: running requests rank as under FCFS,
and a preempted request re-enters the queue with its first score.
"""

from scheduler_adapters.policies.starvation_guard import StarvationGuard
from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView

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


def pars(starve_after_s: float | None = 120.0) -> Policy:
    """Return PARS: shortest predicted first with a starvation guard; None: without a guard."""
    policy = ShortestPredicted()
    return policy if starve_after_s is None else StarvationGuard(policy, after_s=starve_after_s)
