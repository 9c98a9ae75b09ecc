"""Recent scores and lengths: a median for unscored requests, and the score of a length."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from math import inf, nextafter
from typing import Final

from scheduler_adapters.views import RequestView

# Few enough to follow a new ranker, whose scores have another scale.
WINDOW: Final = 256
"""Number of newest rows that count."""
FIRST_LENGTHS: Final = (8.0, 32.0, 128.0, 512.0)
"""Output tokens that are spread over the recent scores, whatever the pairs are."""


class Recent:
    """The newest `WINDOW` rows of numbers, each column in order. These are brought up to date after
    1, 2, 4 and so on up to `WINDOW` rows, then after each `WINDOW`."""

    __slots__ = ("_newest", "_until_next", "columns")

    def __init__(self, num_columns: int) -> None:
        self._newest = deque[tuple[float, ...]]((), WINDOW)
        self._until_next = 1
        self.columns: Sequence[Sequence[float]] = [()] * num_columns

    def add(self, *row: float) -> bool:
        """Count a row; return whether the columns are new ones."""
        self._newest.append(row)
        self._until_next -= 1
        if self._until_next:
            return False
        self.columns = list(map(sorted, zip(*self._newest, strict=True)))
        self._until_next = len(self._newest)
        return True


class RecentMedian:
    """The order of recent scores and their median, and recent pairs of a score and a length.

    In between their updates both stay constant: requests without a score share a key, and their
    arrival decides. A scored request makes a pair with its predicted median length, else with its
    real length if it ended inside its limits. A limit moves a score to that of a length at the
    limit: ordered scores belong to ordered lengths, linearly between and beyond. So does
    `FIRST_LENGTHS`, from below the least recent score to above the greatest: these decide first.
    """

    __slots__ = ("_line", "_pairs", "_scores", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        """None before the first score."""
        self._scores = Recent(1)
        self._pairs = Recent(2)
        self._line: tuple[list[float], list[float]] | None = None
        """Ordered scores and the lengths that belong to them; None: to be made anew."""

    def arrived(self, view: RequestView) -> None:
        """Keep a view to its limits, count its score and show it the earlier ones.

        A view without a score gets the median score.
        """
        least, most = view.limits
        if view.score is None:
            view.median_score = self._within(view.limits, self.value)
        else:
            score, view.median_score = view.score, None
            if view.quantiles:
                self._pair(score, view.expected_tokens(0))
            view.score = self._within(view.limits, score)
            self.add(score)
        if view.quantiles:
            view.quantiles = tuple((q, min(max(n, least), most)) for q, n in view.quantiles)

    def finished(self, view: RequestView, output_tokens: int) -> None:
        """Count the length of an output that neither a prediction nor a limit has given."""
        least, most = view.limits
        if view.score is not None and not view.quantiles and least < output_tokens < most:
            self._pair(view.score, output_tokens)

    def add(self, score: float) -> None:
        """Count a score."""
        if self._scores.add(score):
            ordered, self._line = self._scores.columns[0], None
            self.value = ordered[(len(ordered) - 1) // 2]

    def _pair(self, score: float, length: float) -> None:
        if self._pairs.add(score, length):
            self._line = None

    def _within(self, limits: tuple[float, float], score: float | None) -> float | None:
        recent, (least, most) = self._scores.columns[0], limits
        if score is None or not recent or (least <= 0 and most == inf):
            return score
        if self._line is None:
            last, (scores, lengths) = len(recent) - 1, map(list, self._pairs.columns)
            scores += [nextafter(recent[0], -inf), recent[last // 3], recent[2 * last // 3]]
            scores.append(nextafter(recent[-1], inf))
            self._line = sorted(scores), sorted([*FIRST_LENGTHS, *lengths])
        scores, lengths = self._line
        if (at := bisect_right(lengths, most)) < len(lengths):
            score = min(score, _score_at(at, most, lengths, scores))
        if at := bisect_left(lengths, least):
            score = max(score, _score_at(at, least, lengths, scores))
        return score


def _score_at(at: int, tokens: float, lengths: Sequence[float], scores: Sequence[float]) -> float:
    """Return the score of a length that belongs before place `at`."""
    low, high = (at - 1, at) if 0 < at < len(lengths) else (0, -1)
    slope = (scores[high] - scores[low]) / (lengths[high] - lengths[low])
    return scores[low] + (tokens - lengths[low]) * slope
