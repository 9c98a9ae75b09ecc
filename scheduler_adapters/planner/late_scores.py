"""Scores that come after their requests, matched by a ticket, in whichever order the two come."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from scheduler_adapters.planner.request_annotations import read_hints

Item = TypeVar("Item")
Quantiles = tuple[tuple[float, float], ...]
MOST: Final = 8192
"""Scores, and requests without one, that are remembered; of more, the oldest are forgotten."""


class LateScore(NamedTuple):
    """A score and the request that it is for."""

    ticket: str
    score: float
    quantiles: Quantiles = ()


def late_score(ticket: str | None, carried: Mapping[str, Any]) -> LateScore | None:
    """Return the score that stands among hints; None without a usable one, or without a ticket."""
    found, _ = read_hints(carried)
    if ticket is None or "score" not in found:
        return None
    return LateScore(ticket, found["score"], found.get("quantiles", ()))


class LateScores(Generic[Item]):
    """The requests of an engine that came without a score, and the scores that came later.

    Several requests may share a ticket: the samples of one prompt.
    """

    def __init__(self) -> None:
        self.inbox: deque[LateScore] = deque(maxlen=MOST)
        """Scores that have come since the last step; any thread may append."""
        self._waiting: dict[str, list[Item]] = {}
        self._known: dict[str, LateScore] = {}

    def expect(self, ticket: str, item: Item) -> LateScore | None:
        """Return the score of a ticket where it has come before; else note who waits for it."""
        if ticket not in self._known:
            self._waiting.setdefault(ticket, []).append(item)
            _forget(self._waiting)
        return self._known.get(ticket)

    def forget(self, ticket: str) -> None:
        """Forget a ticket whose requests have left, so that it may be used again."""
        self._waiting.pop(ticket, None)
        self._known.pop(ticket, None)

    def take(self) -> Iterator[tuple[Item, LateScore]]:
        """Empty the inbox: yield the requests whose score has come."""
        while self.inbox:
            late = self.inbox.popleft()
            self._known[late.ticket] = late
            _forget(self._known)
            for item in self._waiting.pop(late.ticket, ()):
                yield item, late


def _forget(kept: dict[str, Any]) -> None:
    if len(kept) > MOST:
        del kept[next(iter(kept))]
