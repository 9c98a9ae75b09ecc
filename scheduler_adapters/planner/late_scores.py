"""Scores that arrive after their requests, matched by a key that both carry, in either order."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from scheduler_adapters.planner.request_annotations import read_annotations

Item = TypeVar("Item")
MAX_KEPT: Final = 8192
"""Most scores, and most requests without one, that are kept; the oldest are dropped first."""


class LateScore(NamedTuple):
    """A score and the key of its request."""

    key: str
    score: float
    quantiles: tuple[tuple[float, float], ...] = ()


def late_score(key: str | None, carried: Mapping[str, Any]) -> LateScore | None:
    """Return the score among annotations; None without a usable score or without a key."""
    found, _ = read_annotations(carried)
    if key is None or "score" not in found:
        return None
    return LateScore(key, found["score"], found.get("quantiles", ()))


class LateScores(Generic[Item]):
    """An engine's requests without a score, and the scores that arrived later.

    Several requests may share a key: the samples of one prompt.
    """

    def __init__(self) -> None:
        self.inbox: deque[LateScore] = deque(maxlen=MAX_KEPT)
        """Scores queued since the last step; any thread may append."""
        self._waiting: dict[str, list[Item]] = {}
        self._known: dict[str, LateScore] = {}

    def expect(self, key: str, item: Item) -> LateScore | None:
        """Return the score of a key if it has arrived, else register the request for it."""
        if key not in self._known:
            self._waiting.setdefault(key, []).append(item)
            _drop_oldest(self._waiting)
        return self._known.get(key)

    def forget(self, key: str) -> None:
        """Release the key of finished requests."""
        self._waiting.pop(key, None)
        self._known.pop(key, None)

    def take(self) -> Iterator[tuple[Item, LateScore]]:
        """Empty the inbox; yield each registered request whose score is in it."""
        while self.inbox:
            late = self.inbox.popleft()
            self._known[late.key] = late
            _drop_oldest(self._known)
            for item in self._waiting.pop(late.key, ()):
                yield item, late


def _drop_oldest(kept: dict[str, Any]) -> None:
    if len(kept) > MAX_KEPT:
        del kept[next(iter(kept))]
