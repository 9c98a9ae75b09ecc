"""Admissions that differ from the order of the scores: with PARS, those that its guard decides."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from math import nan

from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import RequestView


class ScoreOrder(EngineObserver):
    """Counts first admissions, and those past a waiting request with a lower score.

    A request without a score counts with the median of the others. Its score counts as it arrives.
    """

    def __init__(self) -> None:
        self.num_admitted = self._num_past = 0
        self._scores: dict[int, float] = {}
        """Receive number of each waiting request -> score."""
        self._waiting: list[tuple[float, int]] = []
        """Pairs of score and receive number, ascending."""
        self._step: list[float] = []
        """Scores admitted at `_step_s`."""
        self._step_s = 0.0

    def queued(self, request: RequestView, now_s: float) -> None:
        self._end_step()
        self.withdrawn(request, now_s)
        score = request.median_score if request.score is None else request.score
        if score is not None:
            self._scores[request.number] = score
            insort(self._waiting, (score, request.number))

    def scored(self, request: RequestView, now_s: float) -> None:
        if not request.preemptions:
            self.queued(request, now_s)

    def admitted(self, request: RequestView, now_s: float) -> None:
        if now_s != self._step_s:
            self._end_step()
            self._step_s = now_s
        self.num_admitted += not request.preemptions
        if request.number in self._scores:
            self._step.append(self._scores[request.number])
            self.withdrawn(request, now_s)

    def withdrawn(self, request: RequestView, now_s: float) -> None:
        if (score := self._scores.pop(request.number, None)) is not None:
            del self._waiting[bisect_left(self._waiting, (score, request.number))]

    @property
    def num_past_lower_score(self) -> int:
        """First admissions while a request with a lower score had to wait."""
        self._end_step()
        return self._num_past

    def _end_step(self) -> None:
        """Compare the admissions of the newest step with the requests that it left waiting."""
        if self._waiting:
            self._num_past += sum(score > self._waiting[0][0] for score in self._step)
        self._step.clear()


def past_lower_score_fraction(orders: Sequence[ScoreOrder]) -> float:
    """Return the share of first admissions past a lower score; NaN without observed admissions."""
    num_admitted = sum(order.num_admitted for order in orders)
    num_past = sum(order.num_past_lower_score for order in orders)
    return num_past / num_admitted if num_admitted else nan
