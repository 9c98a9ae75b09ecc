"""Shortest predicted job first: the waiting queue in score order (PARS, its baselines, the oracle).

Who made the scores makes the policy: PARS's pairwise ranker, a pointwise regression, a listwise
ranker, or the true lengths (oracle). A request without a score is ranked as FCFS ranks it, that is
with the starving ones, by arrival.

Source: PARS, Algorithm 1. Only the waiting queue is reordered: a running request ranks as FCFS
ranks it, and a preempted one re-enters the queue with its first score.
"""

from __future__ import annotations

from scheduler_adapters.policies.starvation_guard import StarvationGuard
from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView

_BY_ARRIVAL = Rank()


class ShortestPredicted(Policy):
    """Lowest score first. Constant scores are FCFS; scores equal to the lengths are the oracle."""

    name = "shortest-predicted"
    traits = Traits(is_static=True)

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        if request.score is None or request.phase is not Phase.WAITING:
            return _BY_ARRIVAL
        return Rank((request.score,))


def pars(starve_after_s: float | None = 120.0) -> Policy:
    """PARS: shortest predicted first with its starvation guard; None leaves the guard off."""
    policy = ShortestPredicted()
    return policy if starve_after_s is None else StarvationGuard(policy, after_s=starve_after_s)
