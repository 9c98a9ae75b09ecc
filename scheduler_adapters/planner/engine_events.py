"""Events of a real engine's requests, reported to its observers; ends of thinking among them."""

from collections.abc import Sequence
from typing import Any, Final

from scheduler_adapters.planner.ranked_queue import RankedRequest
from scheduler_adapters.timeline.observer import EngineObserver, overriding
from scheduler_adapters.views import RequestView

_EVENTS: Final = (
    *("queued", "scored", "admitted", "thinking_ended", "evicted"),
    *("finished", "withdrawn", "stepped"),
)
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
        self._reports = {
            event: [getattr(one, event) for one in overriding(observers, event)]
            for event in _EVENTS
        }
        self._reports["emitted"] = [one.emitted_each for one in overriding(observers, "emitted")]

    def ends_prompt_thinking(self, prompt: Sequence[int]) -> bool:
        """Return whether a prompt ends thinking, so that the first generated token answers."""
        # Where thinking is off, a chat template ends the prompt with an empty thought and perhaps
        # line breaks.
        return bool(self.think_end) and ends_thinking(prompt, _NEWEST_TOKENS, self.think_end)

    def tell(self, event: str, *told: Any) -> None:
        """Report an event of `EngineObserver` by its name."""
        for report in self._reports[event]:
            report(*told)

    def admitted(self, tracked: RankedRequest, started_s: float) -> None:
        """Report an admission, and an end of thinking in the prompt."""
        self.tell("admitted", tracked.view, started_s)
        if tracked.thinking_over:
            self.tell("thinking_ended", tracked.view, started_s)

    def emitted(
        self,
        views: Sequence[RequestView],
        outputs: Sequence[Sequence[int]],
        counts: Sequence[int],
        now_s: float,
    ) -> None:
        """Report a step's tokens, the newest `counts` of the outputs, and ends of thinking."""
        end = self.think_end
        self.tell("emitted", views, counts, now_s)
        for view, output, count in zip(views, outputs, counts, strict=True) if end else ():
            if end[-1] in output[-count:] and ends_thinking(output, count, end):
                self.tell("thinking_ended", view, now_s)


def ends_thinking(output: Sequence[int], num_new: int, marker: tuple[int, ...]) -> bool:
    """Return whether one of the newest `num_new` tokens of `output` completes the marker."""
    ends = range(max(len(marker), len(output) - num_new + 1), len(output) + 1)
    return any(tuple(output[end - len(marker) : end]) == marker for end in ends)
