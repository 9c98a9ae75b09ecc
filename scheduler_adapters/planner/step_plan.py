"""A step while it is planned, and the plan that the engine is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from scheduler_adapters.planner.step_budget import StepBudget

Item = TypeVar("Item")


@dataclass(slots=True)
class Plan(Generic[Item]):
    """The next step of an engine."""

    num_tokens: int
    newcomers: list[Item]
    """Waiting requests to admit, in this order."""
    chunk: int | None = None
    """Most prefill tokens of one request."""
    left_out: Sequence[Item] = ()
    """Residents that do not run in the step; they keep their KV blocks."""
    last: Item | None = None
    """A resident whose prefill gets what is left of the budget, so it has to be served last."""


@dataclass(slots=True)
class Step(Generic[Item]):
    """The requests placed so far, and the budget that is left."""

    budget: StepBudget
    free_blocks: int
    """Blocks that are left once all that is placed has what it needs."""
    evicted: set[int]
    """Numbers of those that lost their blocks for it."""
    prefill_tokens: int = 0
    placed: set[int] = field(default_factory=set)
    """Numbers of the residents in the step."""
    displacing: list[Item] = field(default_factory=list)
    """Waiting requests that have seats and blocks, and no tokens yet."""
    newcomers: list[Item] = field(default_factory=list)
    """Waiting requests that have tokens."""
    last: Item | None = None
    admission_closed: bool = False

    def add_prefill(self, chunk: int) -> None:
        self.budget.place_prefill(chunk)
        self.prefill_tokens += chunk
