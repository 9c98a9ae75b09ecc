"""A record of the calls that a run makes inside our packages, for tests of the tours."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

PACKAGES = ("training", "scoring_service", "scheduler_adapters")


@dataclass(frozen=True)
class Call:
    """One call of a function, with its callers in our packages, the nearest first."""

    name: str
    callers: tuple[str, ...]


@dataclass
class Trace:
    """Calls in the order in which they began, over all threads that start while it records."""

    calls: list[Call] = field(default_factory=list)

    def after(self, start: int) -> Iterator[tuple[int, Call]]:
        """(number, call) of every call from number `start` on."""
        return ((n, call) for n, call in enumerate(self.calls) if n >= start)


@contextmanager
def traced(names: set[str] | None = None) -> Iterator[Trace]:
    """Record calls of the functions named (None: all of our packages), as `module:qualified.name`.

    Threads that started before are not seen.
    """
    trace = Trace()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (name := name_of(frame)) and (names is None or name in names):
            trace.calls.append(Call(name, tuple(_callers(frame))))

    previous: Callable[..., Any] | None = sys.getprofile()
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        yield trace
    finally:
        sys.setprofile(previous)
        threading.setprofile(previous)  # type: ignore[arg-type]


def name_of(frame: FrameType) -> str:
    """`module:qualified.name` of a frame of ours, "" for any other."""
    module = frame.f_globals.get("__name__", "")
    ours = module.partition(".")[0] in PACKAGES
    return f"{module}:{frame.f_code.co_qualname}" if ours else ""


def _callers(frame: FrameType) -> Iterator[str]:
    while (caller := frame.f_back) is not None:
        if name := name_of(caller):
            yield name
        frame = caller
