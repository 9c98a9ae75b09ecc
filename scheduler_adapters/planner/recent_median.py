"""The median of recent scores, by which a request without a score is ranked."""

from collections import deque
from statistics import median_low
from typing import Final

from scheduler_adapters.views import RequestView

# Few enough to follow a new ranker, whose scores have another scale.
WINDOW: Final = 256
"""Number of newest scores that count."""


class RecentMedian:
    """The median of the newest `WINDOW` scores.

    It is recomputed after 1, 2, 4 and so on up to `WINDOW` scores, then after each `WINDOW`. In
    between it stays constant: requests without a score share a key, and their arrival decides.
    """

    __slots__ = ("_scores", "_until_next", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        """None before the first score."""
        self._scores: deque[float] = deque(maxlen=WINDOW)
        self._until_next = 1

    def arrived(self, view: RequestView) -> None:
        """Count the score of an arriving request, or set its median score if it has none."""
        view.median_score = self.value if view.score is None else None
        if view.score is not None:
            self.add(view.score)

    def add(self, score: float) -> None:
        """Count a score."""
        self._scores.append(score)
        self._until_next -= 1
        if not self._until_next:
            self.value = median_low(self._scores)
            self._until_next = len(self._scores)
