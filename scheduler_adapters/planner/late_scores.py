"""Scores that arrive after their requests, matched by a key that both carry, in either order."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from scheduler_adapters.planner.request_annotations import read_annotations

Item = TypeVar("Item")
MAX_KEPT: Final = 8192
"""Most scores, and most requests without one, that are kept; the oldest are dropped first."""


class LateScore(NamedTuple):
    """A score and the key of its request."""

    key: str
    score: float | None
    """None: there will be no score."""
    quantiles: tuple[tuple[float, float], ...] = ()
    reason: str = ""
    """Field of `AnnotationCounts` that counts a prompt without a score of its own."""


class PromptScoring(Protocol):
    """Scores of prompts that enter an engine, made outside its steps."""

    hold_s: float
    """Most seconds that a request is held out of a contended queue until its score arrives."""
    score_all: bool
    """True: requests that could start at once are held and scored as well."""

    def submit(
        self, key: str, prompt: Sequence[int], client: str, take: Callable[[LateScore], object]
    ) -> bool:
        """Score a prompt's token ids later and call `take` in another thread.

        Returns False where too many wait; then `take` is not called.
        """

    def wait(self, seconds: float) -> None:
        """Wait until each submitted prompt has its score, at most so long."""


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
            if late.score is not None:
                self._known[late.key] = late
                _drop_oldest(self._known)
            for item in self._waiting.pop(late.key, ()):
                yield item, late


def _drop_oldest(kept: dict[str, Any]) -> None:
    if len(kept) > MAX_KEPT:
        del kept[next(iter(kept))]
