"""A limit on the later arrivals that start before a request, from its arrival on."""

from dataclasses import replace
from math import inf

from lengthwise.settings import NonNegative, checked
from scheduler_adapters.policy import Policy, PolicyWrapper
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView


class OvertakingGuard(PolicyWrapper):
    """Policy whose order holds until a request has yielded to its limit of later arrivals.

    The limit is `at_least` and `times` the number of requests that wait at its arrival, itself
    included. A later arrival beyond it starts after the request, so no wait grows without end, and
    the cost is none while no request reaches its limit. A preempted request precedes all others.
    """

    @checked
    def __init__(
        self, policy: Policy, *, times: NonNegative = 6.0, at_least: NonNegative = 256.0
    ) -> None:
        super().__init__(policy, suffix="+overtaking-guard")
        self.traits = replace(policy.traits, is_static=False)
        self.times, self.at_least = times, at_least

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        rank = self.policy.rank(request, load)
        if request.phase is not Phase.WAITING:
            return rank
        first = rank._replace(key=rank.key[:-1])
        until: float = load.num_started + int(self.at_least + self.times * load.num_waiting)
        if request.previous is not None:  # its score arrived late: the limit stays as it was
            until = request.previous.valid_until_started
        if request.preemptions or until == inf:
            return first
        return rank._replace(valid_until_started=until, then=first)
