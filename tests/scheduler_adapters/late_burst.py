"""A burst whose scores come over a second, and the law that the admissions must keep."""

from collections.abc import Callable, Iterable

import numpy as np

from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import Rank, RequestView
from scheduler_adapters.workload.requests import Requests, make_requests

SEATS = 16


def late_burst(count: int = 200, *, over_s: float = 1.0) -> Requests:
    """All at once; the score of each, its length, is known at a random instant of `over_s`."""
    random = np.random.default_rng(3)
    output_tokens = random.integers(4, 60, count)
    return make_requests(
        prompt_tokens=random.integers(4, 40, count),
        output_tokens=output_tokens,
        scores=output_tokens,
        score_s=random.permutation(np.linspace(over_s / count, over_s, count)),
    )


class ByRank(EngineObserver):
    """Holds every admission against the ranks of those that go on waiting."""

    def __init__(self, waiting_ranks: Callable[[], Iterable[Rank]]) -> None:
        self.waiting_ranks = waiting_ranks
        self.num_scored = self.num_unscored = 0

    def admitted(self, request: RequestView, now_s: float) -> None:
        best = min((rank.key for rank in self.waiting_ranks()), default=None)
        assert request.previous is not None
        assert best is None or request.previous.key <= best
        self.num_scored += request.score is not None
        self.num_unscored += request.score is None
