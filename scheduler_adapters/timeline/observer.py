"""Events of one engine, simulated or real, and the base class of the objects that are told of them.

Progress lines, load curves, closed loops of clients, step records, the live log, telemetry and
recordings are observers. An observer overrides what it wants to hear of; the rest costs nothing.
"""

from collections.abc import Sequence

from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.views import LoadView, RequestView


class EngineObserver:
    """Events of one engine in the order of its clock; all methods do nothing here.

    Times are seconds on the engine's clock. A view is the engine's own: read it, do not keep it.
    """

    def queued(self, request: RequestView, now_s: float) -> None:
        """The request has arrived and waits; it has its first rank."""

    def admitted(self, request: RequestView, now_s: float) -> None:
        """A waiting request takes part in the step that starts now; after an eviction again."""

    def emitted(self, request: RequestView, num_tokens: int, now_s: float) -> None:
        """A step that ends now gave the request tokens."""

    def evicted(self, request: RequestView, now_s: float) -> None:
        """A resident request lost its KV blocks and waits again."""

    def thinking_ended(self, request: RequestView, now_s: float) -> None:
        """An end of thinking is among the request's newest tokens; only its first one counts.

        Told behind these tokens. Where the prompt has ended thinking it is told behind `admitted`,
        before any token, so that the first one answers.
        """

    def finished(self, request: RequestView, now_s: float) -> None:
        """The request has all its tokens and has left the engine."""

    def withdrawn(self, request: RequestView, now_s: float) -> None:
        """The request has left the engine unfinished: aborted, or moved to another instance."""

    def ran(self, load: LoadView, duration_s: float, num_resident: int) -> None:
        """A step of `duration_s` has run, and nothing of it is booked: `load` is that during it.

        `num_resident` requests hold KV blocks, those included that are copied back and so wait.
        Simulated engines only.
        """

    def prefill_ended(self, request: RequestView, now_s: float) -> None:
        """The step that ends now completed a prefill, also one after an eviction.

        Not told where the request finishes with it. Simulated engines only.
        """

    # Events of real engines only.

    def attached(self, load: LoadView) -> None:
        """The engine is idle and tells of itself from now on; it keeps `load` up to date."""

    def stepped(self, now_s: float) -> None:
        """A step ended, and what happened to its requests has been told."""

    def measured(self, step: StepRecord) -> None:
        """A step was of this size and took so long, idle time before it not counted."""

    def close(self) -> None:
        """The engine stops: nothing is told from now on."""


def measuring(observers: Sequence[EngineObserver]) -> list[EngineObserver]:
    """Return those that override `measured`: to know the size of a step costs an engine time."""
    return [one for one in observers if type(one).measured is not EngineObserver.measured]
