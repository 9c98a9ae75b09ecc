"""Events of one engine, simulated or real, and the base classes of its observers.

Progress lines, load curves, step records, the live log, telemetry and recordings are observers.
Events that an observer does not override cost no time.
"""

from collections import deque
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any, Final, Generic, TypeVar

from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.views import LoadView, RequestView

_MAX_STEPS: Final = 4096
_STEPS_KEPT: Final = 32
"""Steps whose events `LaterEvents` keeps: together they cost less than a millisecond."""
Item = TypeVar("Item")


class EngineObserver:
    """Events of one engine in the order of its clock; all methods of this class are empty.

    Times are seconds on the engine's clock. Views belong to the engine; do not keep them.
    """

    def queued(self, request: RequestView, now_s: float) -> None:
        """The request has arrived and has its first rank."""

    def scored(self, request: RequestView, now_s: float) -> None:
        """The score of a waiting request has arrived, or the median in its place is a new one."""

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

    def emitted_each(
        self, requests: Sequence[RequestView], num_tokens: Sequence[int], now_s: float
    ) -> None:
        """The step that ends now emitted so many tokens of these requests: all `emitted` events."""
        for request, number in zip(requests, num_tokens, strict=True):
            self.emitted(request, number, now_s)

    def stepped(self, now_s: float) -> None:
        """A step ended, and all events of its requests are reported."""

    def measured(self, step: StepRecord) -> None:
        """The size and duration of a step, without idle time before it."""

    def close(self) -> None:
        """The engine stops; no event follows."""


def _kept(event: str) -> Callable[..., None]:
    def keep(self: "LaterEvents", *told: Any) -> None:
        self._events.append((event, told))

    return keep


class LaterEvents(EngineObserver):
    """Events of an engine, kept until `tell`: then an observer has them all in their order.

    A step that computes a model leaves cold caches, and an event costs several times more there
    than among others. The observer may read what a view has for good, as it sees it later.
    Another thread that reads the observer holds `lock`, and may call `tell`.
    """

    def __init__(self, observer: EngineObserver) -> None:
        self._observer = observer
        self._events = deque[tuple[str, tuple[Any, ...]]]()
        self._steps = 0
        self.lock = RLock()

    queued, admitted, thinking_ended = map(_kept, ("queued", "admitted", "thinking_ended"))
    emitted, emitted_each, evicted = map(_kept, ("emitted", "emitted_each", "evicted"))
    finished, withdrawn = map(_kept, ("finished", "withdrawn"))

    def stepped(self, now_s: float) -> None:
        self._steps += 1
        if self._steps % _STEPS_KEPT == 0:
            self.tell()

    def tell(self) -> None:
        """Report the kept events."""
        with self.lock:
            for _ in range(len(self._events)):
                event, told = self._events.popleft()
                getattr(self._observer, event)(*told)


class RunObserver(EngineObserver, Generic[Item]):
    """Observer of a real engine that reads tokens in runs: a request has one in each step.

    While equal steps follow each other, a step costs one comparison. `took` has the tokens of one
    request once they are needed, after `take`, and at the latest after `_MAX_STEPS` steps.
    """

    def __init__(self) -> None:
        self.open: dict[str, Item] = {}
        """State of each observed request, by its id."""
        self._step_s: list[float] = []
        self._newest: Sequence[RequestView] = ()
        """Requests of the newest step, if each had one token."""
        self._begun: dict[str, int] = {}
        """Request -> the first step of its run that was not taken."""

    def began(self, one: Item) -> None:
        """The step that ends now begins a run of the request."""

    def took(self, one: Item, step_s: list[float], each: int) -> None:
        """The request has `each` tokens in the steps that ended then."""

    def emitted(self, request: RequestView, num_tokens: int, now_s: float) -> None:
        self.emitted_each([request], [num_tokens], now_s)

    def emitted_each(
        self, requests: Sequence[RequestView], num_tokens: Sequence[int], now_s: float
    ) -> None:
        if len(self._step_s) >= _MAX_STEPS:
            self.take_all()
        if requests != self._newest or num_tokens.count(1) < len(num_tokens):
            self._turn(requests, num_tokens, now_s)
        self._step_s.append(now_s)

    def withdrawn(self, request: RequestView, now_s: float) -> None:
        self.take(request.request_id, ends=True)
        self.open.pop(request.request_id, None)

    def take(self, name: str, *, ends: bool = False) -> None:
        """Take the tokens of a request so far; with `ends`, its run is over."""
        begun, count = self._begun.get(name), len(self._step_s)
        if begun is not None and begun < count:
            self._begun[name] = count
            self.took(self.open[name], self._step_s[begun:], 1)
        if ends and begun is not None:
            del self._begun[name]
            self._newest = ()

    def take_all(self) -> None:
        """Take the tokens of all requests so far."""
        for name in self._begun:
            self.take(name)
        self._begun = dict.fromkeys(self._begun, 0)
        self._step_s.clear()

    def _turn(
        self, requests: Sequence[RequestView], num_tokens: Sequence[int], now_s: float
    ) -> None:
        """End the runs that this step does not continue, and begin those of its other requests."""
        names = [one.request_id for one in requests]
        others = {name: n for name, n in zip(names, num_tokens, strict=True) if n != 1}
        for name in self._begun.keys() - (set(names) - others.keys()):
            self.take(name, ends=True)
        for name in [one for one in names if one in self.open and one not in self._begun]:
            self.began(self.open[name])
            if name in others:
                self.took(self.open[name], [now_s], others[name])
            else:
                self._begun[name] = len(self._step_s)
        self._newest = () if others else requests


def overriding(observers: Sequence[EngineObserver], event: str) -> list[EngineObserver]:
    """Return the observers that override an event: others need no call."""
    plain = getattr(EngineObserver, event)
    return [one for one in observers if getattr(type(one), event) is not plain]
