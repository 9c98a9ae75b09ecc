"""The median of recent scores: the place of a request without one among those that have one."""

from collections import deque
from statistics import median_low
from typing import Final

from scheduler_adapters.views import RequestView

WINDOW: Final = 256
"""Newest scores that count: few enough to follow a new ranker, whose scores have another scale."""


class RecentMedian:
    """The median of the newest `WINDOW` scores, taken anew after 1, 2, 4, ... scores, then after
    each `WINDOW` of them.

    Between two such moments it stands still, so that requests without a score share a key and go by
    arrival among themselves.
    """

    __slots__ = ("_scores", "_until_next", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        """None before the first score."""
        self._scores: deque[float] = deque(maxlen=WINDOW)
        self._until_next = 1

    def arrived(self, view: RequestView) -> None:
        """Count the score of a request that arrives, or give it the median where it has none."""
        if view.score is None:
            view.median_score = self.value
        else:
            view.median_score = None
            self.add(view.score)

    def add(self, score: float) -> None:
        """Count a score."""
        self._scores.append(score)
        self._until_next -= 1
        if not self._until_next:
            self.value = median_low(self._scores)
            self._until_next = len(self._scores)
