"""Events of a real engine's requests, reported to its observers; ends of thinking among them."""

from collections.abc import Sequence

from scheduler_adapters.planner.ranked_queue import RankedRequest
from scheduler_adapters.timeline.observer import EngineObserver, overriding
from scheduler_adapters.views import RequestView

# The thoughts of earlier turns are further back: question and header of the answer follow them.
_NEWEST_TOKENS = 5


class EngineEvents:
    """Reports the events of one engine.

    `think_end`: token ids that end thinking; empty if unused.
    """

    def __init__(
        self, observers: Sequence[EngineObserver] = (), think_end: tuple[int, ...] = ()
    ) -> None:
        self.observers = tuple(observers)
        self.think_end = think_end
        self._at = {
            event: overriding(observers, event)
            for event in ("queued", "scored", "admitted", "emitted", "stepped")
        }

    def ends_prompt_thinking(self, prompt: Sequence[int]) -> bool:
        """Return whether a prompt ends thinking, so that the first generated token answers."""
        # Where thinking is off, a chat template ends the prompt with an empty thought and perhaps
        # line breaks.
        return bool(self.think_end) and ends_thinking(prompt, _NEWEST_TOKENS, self.think_end)

    def queued(self, view: RequestView, now_s: float) -> None:
        """Report a request that has its first rank."""
        for observer in self._at["queued"]:
            observer.queued(view, now_s)

    def scored(self, view: RequestView, now_s: float) -> None:
        """Report a waiting request with a new score."""
        for observer in self._at["scored"]:
            observer.scored(view, now_s)

    def admitted(self, tracked: RankedRequest, started_s: float) -> None:
        """Report an admission, and an end of thinking in the prompt."""
        for observer in self._at["admitted"]:
            observer.admitted(tracked.view, started_s)
        for observer in self.observers if tracked.thinking_over else ():
            observer.thinking_ended(tracked.view, started_s)

    def emitted(
        self,
        views: Sequence[RequestView],
        outputs: Sequence[Sequence[int]],
        counts: Sequence[int],
        now_s: float,
    ) -> None:
        """Report a step's tokens, the newest `counts` of the outputs, and ends of thinking."""
        end = self.think_end
        for observer in self._at["emitted"]:
            observer.emitted_each(views, counts, now_s)
        for view, output, count in zip(views, outputs, counts, strict=True) if end else ():
            if end[-1] in output[-count:] and ends_thinking(output, count, end):
                for observer in self.observers:
                    observer.thinking_ended(view, now_s)

    def evicted(self, view: RequestView, now_s: float) -> None:
        """Report a request that has lost its blocks."""
        for observer in self.observers:
            observer.evicted(view, now_s)

    def left(self, view: RequestView, now_s: float, *, is_finished: bool) -> None:
        """Report a request that has finished, or has left unfinished."""
        for observer in self.observers:
            (observer.finished if is_finished else observer.withdrawn)(view, now_s)

    def stepped(self, now_s: float) -> None:
        """Report the end of a step, after the events of its requests."""
        for observer in self._at["stepped"]:
            observer.stepped(now_s)


def ends_thinking(output: Sequence[int], num_new: int, marker: tuple[int, ...]) -> bool:
    """Return whether one of the newest `num_new` tokens of `output` completes the marker."""
    ends = range(max(len(marker), len(output) - num_new + 1), len(output) + 1)
    return any(tuple(output[end - len(marker) : end]) == marker for end in ends)
