"""The state of one simulated instance that its parts share: requests, counts, the step, events."""

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from scheduler_adapters.planner.step_budget import StepBudget
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine.decode_batch import DecodeBatch
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.timeline.columns import TimelineRecord
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import LoadView, StepRule


class EngineState:
    """What more than one part of an engine reads; `load` holds time, steps and used blocks."""

    # Slots, here and in the parts: Python is a sixth faster than with dictionaries of attributes.
    __slots__ = (
        "events", "evictions_without_token", "held_blocks", "instance", "lives", "load",
        "next_arrival_s", "num_prefilling", "num_reasoning", "num_returning", "num_waiting",
        "policy", "record", "residents", "until_s", "waiting_tokens",
    )  # fmt: skip

    def __init__(
        self, policy: Policy, instance: Instance, observers: Iterable[EngineObserver]
    ) -> None:
        self.policy = policy
        self.instance = instance
        self.events = ObservedEvents(observers)
        self.record = TimelineRecord()
        self.load = LoadView(total_blocks=instance.kv_blocks)
        self.lives: list[RequestState] = []
        """All requests by row, those to come included; `GONE` for those that have left."""
        self.residents: dict[int, RequestState] = {}
        self.num_waiting = self.num_prefilling = self.num_reasoning = 0
        self.num_returning = 0
        """Of the waiting: those that are being copied back, and so are residents as well."""
        self.waiting_tokens = 0
        """Prompt tokens of the waiting."""
        self.held_blocks = 0
        """Used blocks of requests that have left, whose KV is still being copied away."""
        self.evictions_without_token = 0
        self.next_arrival_s = inf
        self.until_s = inf
        """No step starts from here on; an observer that stops the run sets it to -inf."""

    def count(self) -> None:
        """Bring the counts that a policy sees up to date."""
        load = self.load
        load.num_waiting = self.num_waiting
        load.num_prefilling = self.num_prefilling
        load.num_decoding = len(self.residents) - self.num_prefilling - self.num_returning


class StepInProgress:
    """The step that is being filled or run."""

    __slots__ = ("budget", "chunks", "is_steady", "offloads", "placed", "repeats", "rule")

    rule: StepRule
    budget: StepBudget
    offloads: bool
    """Whether what is evicted goes to the host."""
    is_steady: bool
    """Whether the step could be repeated as it is."""
    repeats: bool
    """Whether the next step is filled like this one: nothing has changed since it started. Whoever
    changes what a step is filled from clears this."""

    def __init__(self) -> None:
        self.repeats = False
        self.placed: list[DecodeBatch] = []
        self.chunks: list[tuple[RequestState, int]] = []
        """Prefills in the step, with their tokens."""


class ObservedEvents:
    """The observers of an engine by event; an event that none of them overrides costs nothing."""

    __slots__ = (
        "admitted", "emitted", "evicted", "finished", "prefill_ended", "queued", "ran",
        "thinking_ended", "withdrawn",
    )  # fmt: skip

    def __init__(self, observers: Iterable[EngineObserver]) -> None:
        for name in self.__slots__:
            setattr(self, name, [])
        for observer in observers:
            self.add(observer)

    def add(self, observer: EngineObserver) -> None:
        """Tell an observer from now on."""
        for name in self.__slots__:
            if getattr(type(observer), name) is not getattr(EngineObserver, name):
                getattr(self, name).append(getattr(observer, name))

    admitted: list[Callable[..., Any]]
    emitted: list[Callable[..., Any]]
    evicted: list[Callable[..., Any]]
    finished: list[Callable[..., Any]]
    prefill_ended: list[Callable[..., Any]]
    queued: list[Callable[..., Any]]
    ran: list[Callable[..., Any]]
    thinking_ended: list[Callable[..., Any]]
    withdrawn: list[Callable[..., Any]]
