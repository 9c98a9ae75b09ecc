"""Events of one engine, simulated or real, and the base class of its observers.

Progress lines, load curves, closed loops of clients, step records, the live log, telemetry and
recordings are observers. Events that an observer does not override cost no time.
"""

from collections.abc import Sequence

from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.views import LoadView, RequestView


class EngineObserver:
    """Events of one engine in the order of its clock; all methods of this class are empty.

    Times are seconds on the engine's clock. Views belong to the engine; do not keep them.
    """

    def queued(self, request: RequestView, now_s: float) -> None:
        """The request has arrived and has its first rank."""

    def admitted(self, request: RequestView, now_s: float) -> None:
        """A waiting request is part of the step that starts now, also after an eviction."""

    def emitted(self, request: RequestView, num_tokens: int, now_s: float) -> None:
        """The step that ends now emitted tokens of the request."""

    def evicted(self, request: RequestView, now_s: float) -> None:
        """A resident request lost its KV blocks and waits again."""

    def thinking_ended(self, request: RequestView, now_s: float) -> None:
        """An end of thinking is among the request's newest tokens; only the first end counts.

        The event follows `emitted`. If the prompt ends the thinking, it follows `admitted`.
        """

    def finished(self, request: RequestView, now_s: float) -> None:
        """The request has all its tokens and has left the engine."""

    def withdrawn(self, request: RequestView, now_s: float) -> None:
        """The request has left the engine unfinished: aborted, or moved to another instance."""

    def ran(self, load: LoadView, duration_s: float, num_resident: int) -> None:
        """A step of `duration_s` has run; `load` is the load during the step.

        `num_resident` requests hold KV blocks, or are copied back from host memory. Simulated
        engines only.
        """

    def prefill_ended(self, request: RequestView, now_s: float) -> None:
        """The step that ends now completed a prefill, also one after an eviction.

        A request that finishes in this step has no such event. Simulated engines only.
        """

    # Events of real engines only.

    def stepped(self, now_s: float) -> None:
        """A step ended, and all events of its requests are reported."""

    def measured(self, step: StepRecord) -> None:
        """The size and duration of a step, without idle time before it."""

    def close(self) -> None:
        """The engine stops; no event follows."""


def measuring(observers: Sequence[EngineObserver]) -> list[EngineObserver]:
    """Return the observers that override `measured`."""
    # The size of a step costs an engine time.
    return [one for one in observers if type(one).measured is not EngineObserver.measured]
