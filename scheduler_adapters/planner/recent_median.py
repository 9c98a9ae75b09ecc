"""Recent scores and lengths: a median for unscored requests, and the place of a length."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from scheduler_adapters.views import RequestView

# Few enough to follow a new ranker, whose scores have another scale.
WINDOW: Final = 256
"""Number of newest scores that count."""
FIRST_LENGTHS: Final = (8.0, 32.0, 128.0, 512.0)
"""Output tokens that are recent before any request has ended."""


class Recent:
    """The newest `WINDOW` numbers in order, brought up to date after 1, 2, 4 and so on up to
    `WINDOW` numbers, then after each `WINDOW`."""

    __slots__ = ("_newest", "_until_next", "ordered")

    def __init__(self, numbers: Iterable[float] = ()) -> None:
        self._newest = deque(numbers, WINDOW)
        self.ordered = sorted(self._newest)
        self._until_next = 1

    def add(self, number: float) -> bool:
        """Count a number; return whether the order is a new one."""
        self._newest.append(number)
        self._until_next -= 1
        if self._until_next:
            return False
        self.ordered = sorted(self._newest)
        self._until_next = len(self.ordered)
        return True


_FEWEST: Final = 16
"""Fewest scores among which a known length has a place; with fewer its own score counts."""


class RecentMedian:
    """The order of recent scores and their median, and the lengths of recent outputs.

    In between their updates both stay constant: requests without a score share a key, and their
    arrival decides. A score of a request that limits its output moves to the place that a length at
    the limit has among recent lengths. These are predicted medians, or else known or real lengths.
    """

    __slots__ = ("_lengths", "_scores", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        """None before the first score."""
        self._scores = Recent()
        self._lengths = Recent(FIRST_LENGTHS)

    def arrived(self, view: RequestView) -> None:
        """Keep a view to its limits, count its score and show it the earlier ones.

        A view without a score gets the median score.
        """
        least, most = view.limits
        if view.score is None:
            view.median_score = self._within_limits(view, self.value)
        else:
            score, view.median_score = view.score, None
            view.score = self._within_limits(view, score)
            view.recent_scores = self._scores.ordered
            self.add(score)
        if view.quantiles:
            self._lengths.add(view.expected_tokens(0))
            view.quantiles = tuple((q, min(max(n, least), most)) for q, n in view.quantiles)
        elif least == most < inf:
            self._lengths.add(most)

    def finished(self, view: RequestView, output_tokens: int) -> None:
        """Count the length of an output that was not known before."""
        least, most = view.limits
        if not view.quantiles and not least == most < inf:
            self._lengths.add(output_tokens)

    def add(self, score: float) -> None:
        """Count a score."""
        if self._scores.add(score):
            ordered = self._scores.ordered
            self.value = ordered[(len(ordered) - 1) // 2]

    def _within_limits(self, view: RequestView, score: float | None) -> float | None:
        least, most = view.limits
        scores = self._scores.ordered
        if score is None or not scores or (least <= 0 and most == inf):
            return score

        def of_length(tokens: float) -> tuple[float, float]:
            """Return the share of shorter recent outputs, and the score with that share."""
            share = _share_below(self._lengths.ordered, tokens)
            place = min(max(share * len(scores) - 0.5, 0.0), len(scores) - 1.0)
            at = min(int(place), len(scores) - 2)
            if at < 0:
                return share, scores[0]
            return share, scores[at] + (place - at) * (scores[at + 1] - scores[at])

        share, limit = of_length(most)
        if least == most < inf:
            return limit if len(scores) >= _FEWEST else score
        score = min(score, limit) if share < 1 else score
        share, limit = of_length(least)
        return max(score, limit) if share > 0 else score


def _share_below(ordered: Sequence[float], number: float) -> float:
    """Return the share of numbers below one; equal ones count by half, others linearly between."""
    below, above = bisect_left(ordered, number), bisect_right(ordered, number)
    part = (below + above) / 2
    if below == above and 0 < below < len(ordered):
        last, after = ordered[below - 1], ordered[below]
        part += (number - last) / (after - last) - 0.5
    return part / len(ordered)
