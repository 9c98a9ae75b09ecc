"""Events of one engine, simulated or real, and the base class of the objects that are told of them.

Progress lines, load curves, closed loops of clients, step records, the live log, telemetry and
recordings are observers. An observer overrides what it wants to hear of; the rest costs nothing.
"""

from __future__ import annotations

from scheduler_adapters.views import LoadView, RequestView


class EngineObserver:
    """Events of one engine in the order of its clock; all methods do nothing here.

    Times are seconds on the engine's clock. A view is the engine's own: read it, do not keep it.
    A real engine tells all of them; a simulated one the first five, and `withdrawn`.
    """

    def queued(self, request: RequestView, now_s: float) -> None:
        """The request has arrived and waits; it has its first rank."""

    def admitted(self, request: RequestView, now_s: float) -> None:
        """A waiting request takes part in the step that starts now; after an eviction again."""

    def emitted(self, request: RequestView, num_tokens: int, now_s: float) -> None:
        """A step that ends now gave the request tokens."""

    def evicted(self, request: RequestView, now_s: float) -> None:
        """A resident request lost its KV blocks and waits again."""

    def finished(self, request: RequestView, now_s: float) -> None:
        """The request has all its tokens and has left the engine."""

    def withdrawn(self, request: RequestView, now_s: float) -> None:
        """The request has left the engine unfinished: aborted, or moved to another instance."""

    def thinking_ended(self, request: RequestView, now_s: float) -> None:
        """The request's newest token ended its thinking; the next one is an answering token."""

    def stepped(self, now_s: float) -> None:
        """A step ended, and all else that happened in it has been told."""

    def attached(self, load: LoadView) -> None:
        """The observer hears of an engine from now on, which keeps `load` up to date."""

    def close(self) -> None:
        """The engine stops: nothing is told from now on."""
