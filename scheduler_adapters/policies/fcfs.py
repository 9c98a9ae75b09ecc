"""First come, first served: the order of every serving engine without a scheduler of its own."""

from __future__ import annotations

from scheduler_adapters.policy import Policy
from scheduler_adapters.views import LoadView, Rank, RequestView

_SERVE_BY_ARRIVAL = Rank(sticky=True)


class FCFS(Policy):
    """Serves requests in the order in which the engine received them."""

    name = "fcfs"
    is_static = True

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return _SERVE_BY_ARRIVAL
