"""The observers of one engine by event; an event that no observer overrides costs nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from scheduler_adapters.timeline.observer import EngineObserver

Methods = list[Callable[..., Any]]


@dataclass(slots=True)
class ObservedEvents:
    """By event the methods of observers that override it."""

    admitted: Methods = field(default_factory=list)
    emitted: Methods = field(default_factory=list)
    evicted: Methods = field(default_factory=list)
    finished: Methods = field(default_factory=list)
    prefill_ended: Methods = field(default_factory=list)
    queued: Methods = field(default_factory=list)
    ran: Methods = field(default_factory=list)
    scored: Methods = field(default_factory=list)
    thinking_ended: Methods = field(default_factory=list)
    withdrawn: Methods = field(default_factory=list)

    def add(self, observer: EngineObserver) -> None:
        """Add the events that an observer overrides."""
        for name in (each.name for each in fields(self)):
            if getattr(type(observer), name) is not getattr(EngineObserver, name):
                getattr(self, name).append(getattr(observer, name))
