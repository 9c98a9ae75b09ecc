"""Recent scores: their median, for a request without a score, and the place of a new score."""

from collections import deque
from typing import Final

from scheduler_adapters.views import RequestView

# Few enough to follow a new ranker, whose scores have another scale.
WINDOW: Final = 256
"""Number of newest scores that count."""


class RecentMedian:
    """The order of the newest `WINDOW` scores, and their median.

    Both are recomputed after 1, 2, 4 and so on up to `WINDOW` scores, then after each `WINDOW`. In
    between they stay constant: requests without a score share a key, and their arrival decides.
    """

    __slots__ = ("_ordered", "_scores", "_until_next", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        """None before the first score."""
        self._ordered: list[float] = []
        self._scores: deque[float] = deque(maxlen=WINDOW)
        self._until_next = 1

    def arrived(self, view: RequestView) -> None:
        """Count the score of a view and show it the earlier ones, or set its median score."""
        view.median_score = self.value if view.score is None else None
        if view.score is not None:
            view.recent_scores = self._ordered
            self.add(view.score)

    def add(self, score: float) -> None:
        """Count a score."""
        self._scores.append(score)
        self._until_next -= 1
        if not self._until_next:
            self._ordered = sorted(self._scores)
            self._until_next = len(self._ordered)
            self.value = self._ordered[(self._until_next - 1) // 2]
