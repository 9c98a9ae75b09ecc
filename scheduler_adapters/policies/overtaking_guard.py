"""A limit on the later arrivals that may be served before a request, from its arrival on."""

from math import inf

from lengthwise.settings import NonNegative, checked
from scheduler_adapters.policy import Policy
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView, new_rank

_SLOPE = 0.1  # orders requests of nearly one time by their scores, in a burst above all
_YIELDS_FROM, _YIELDS_FULLY = 0.5, 0.7


class OvertakingGuard(Policy):
    """Shortest predicted first, where a request yields only to the next arrivals.

    The limit is `at_least` and `times` the number of requests that wait at its arrival, itself
    included. Requests of the longest scores yield to so many, of the shorter half to a tenth of
    them at most. The rank is the receive number plus that number and never changes while the
    request waits, so no wait grows without end. A preempted request yields to none.

    The order needs no unit of the scores: their share among recent scores decides.
    """

    name = "shortest-predicted+overtaking-guard"

    @checked
    def __init__(self, *, times: NonNegative = 6.0, at_least: NonNegative = 256.0) -> None:
        self.times, self.at_least = times, at_least

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        if request.phase is not Phase.WAITING:
            return Rank()
        number = float(request.number)
        if not request.preemptions:
            limit = self.at_least + self.times * load.num_waiting
            number += limit * yielding(request.score_share)
        return new_rank(Rank, ((number,), 0, inf, inf, None, (), None, False))


def yielding(share: float) -> float:
    """Return the part of its limit to which a request yields; `share` is that of shorter scores."""
    # With half of the requests at the front of the queue, the median latency is that without a
    # guard. Most work is in the longest third, whose own order is FCFS.
    part = (share - _YIELDS_FROM) / (_YIELDS_FULLY - _YIELDS_FROM)
    return _SLOPE * share + (1 - _SLOPE) * min(1.0, max(0.0, part))
