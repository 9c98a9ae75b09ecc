"""Events of one engine, simulated or real, and the base class of the objects that are told of them.

Progress lines, load curves, closed loops of clients, step records, the live log, telemetry and
recordings are observers. An observer overrides what it wants to hear of; the rest costs nothing.
"""

from __future__ import annotations

from scheduler_adapters.views import RequestView


class EngineObserver:
    """Events of one engine in the order of its clock; all methods do nothing here.

    Times are seconds on the engine's clock. A view is the engine's own: read it, do not keep it.
    """

    def admitted(self, request: RequestView, now_s: float) -> None:
        """A waiting request takes part in the step that starts now; after an eviction again."""

    def emitted(self, request: RequestView, num_tokens: int, now_s: float) -> None:
        """A step that ends now gave the request tokens."""

    def evicted(self, request: RequestView, now_s: float) -> None:
        """A resident request lost its KV blocks and waits again."""

    def finished(self, request: RequestView, now_s: float) -> None:
        """The request has all its tokens, or was aborted, and has left the engine."""
