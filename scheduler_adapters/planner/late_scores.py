"""Scores that arrive after their requests: from outside, or from the engine's own ranker.

Scores and requests are matched by a key that both carry, in either order. While the engine's own
ranker scores a request, the request may be held out of a contended queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from scheduler_adapters.planner.request_annotations import AnnotationCounts, read_annotations

if TYPE_CHECKING:
    from scheduler_adapters.planner.ranked_queue import RankedQueue, RankedRequest

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
    """Most seconds that a request is held until its score arrives."""
    score_all: bool

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


class ScoreHolds:
    """Requests of one engine without a score, until the engine's own ranker has scored them.

    Args:
        late: where the scores arrive.
        counts: of the requests that get none.
        scores_all: True if requests that could start at once are scored as well.
    """

    def __init__(
        self,
        scoring: PromptScoring,
        late: LateScores[RankedRequest],
        counts: AnnotationCounts,
        scores_all: bool,
    ) -> None:
        self._scoring = scoring
        self._late = late
        self._counts = counts
        self._scores_all = scores_all
        self._unscored: list[RankedRequest] = []
        """Requests queued without a score, since seats and tokens were free for all."""

    def hold(self, tracked: RankedRequest, key: str, prompt: Sequence[int], now_s: float) -> None:
        """Hold a request that has arrived."""
        tracked.held_until_s = now_s + self._scoring.hold_s
        tracked.unscored = key, prompt
        if self._scores_all:
            self.score(tracked)

    def score(self, tracked: RankedRequest) -> None:
        """Give a prompt to the engine's own ranker, once."""
        if tracked.unscored is not None:
            (key, prompt), tracked.unscored = tracked.unscored, None
            tracked.late_score = self._late.expect(key, tracked)
            if tracked.late_score is None and not self._scoring.submit(
                key, prompt, tracked.view.client, self._late.inbox.append
            ):
                self._counts.count("full")
                tracked.held_until_s = min(0.0, tracked.held_until_s)  # over in the next step

    def score_waiting(self, queues: Iterable[RankedQueue[Any]]) -> None:
        """Score what still waits of the requests that the last step could have started."""
        unscored, self._unscored = self._unscored, []
        for tracked in (one for one in unscored if any(one.view.number in each for each in queues)):
            self.score(tracked)

    def request(
        self,
        queue: RankedQueue[Any],
        now_s: float,
        num_free: int,
        num_tokens: float,
        is_idle: bool,
    ) -> float | None:
        """Request the scores of held requests, unless seats and tokens suffice for all that wait.

        Returns the time up to which holds are over; None: the present time after this call. An
        idle engine first waits for the scores, as a step without requests would do nothing.
        """
        held = [item.lengthwise for item in queue.held.values()]
        is_contended = (
            self._scores_all
            or len(queue) + len(held) > num_free
            or num_tokens
            < sum(one.view.prompt_tokens for one in held)
            + sum(item.lengthwise.view.prompt_tokens for item in queue)
        )
        if not is_contended:
            self._unscored += [tracked for tracked in held if tracked.unscored is not None]
            return inf
        first_s: float = held[0].held_until_s
        for tracked in held:
            self.score(tracked)
        if not is_idle:
            return None
        self._scoring.wait(first_s - now_s)
        return first_s

    def over(self, queue: RankedQueue[Any], over_s: float) -> list[RankedRequest]:
        """Return the requests of a queue whose holds end by then."""
        return [
            item.lengthwise
            for item in queue.held.values()
            if item.lengthwise.held_until_s <= over_s
        ]


def _drop_oldest(kept: dict[str, Any]) -> None:
    if len(kept) > MAX_KEPT:
        del kept[next(iter(kept))]
