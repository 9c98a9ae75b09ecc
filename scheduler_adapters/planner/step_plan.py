"""A step while it is planned, and the plan that the engine is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from scheduler_adapters.views import StepRule

Item = TypeVar("Item")


@dataclass(slots=True)
class Plan(Generic[Item]):
    """What the engine is to do in this step."""

    num_tokens: int
    newcomers: list[Item]
    """Waiting requests to admit, in this order."""
    chunk: int | None = None
    """Most prefill tokens of one request."""
    hidden: Sequence[Item] = ()
    """Residents to leave out of the step, with their KV kept."""
    last: Item | None = None
    """A resident whose prefill gets what is left of the budget, so it has to be served last."""


@dataclass(slots=True)
class Step(Generic[Item]):
    """What has been placed so far, and what may still be."""

    rule: StepRule
    budget: float
    free_blocks: int
    """Blocks that are left once all that is placed has what it needs."""
    evicted: set[int]
    """Numbers of those that lost their blocks for it."""
    num_decodes: int = 0
    chunks: list[int] = field(default_factory=list)
    placed: set[int] = field(default_factory=set)
    """Numbers of the residents in the step."""
    displacing: list[Item] = field(default_factory=list)
    """Waiting requests that have seats and blocks, and no tokens yet."""
    newcomers: list[Item] = field(default_factory=list)
    """Waiting requests that have tokens."""
    last: Item | None = None
    admission_closed: bool = False

    def takes_decodes(self) -> bool:
        return (
            (self.rule.mixed or not self.chunks)
            and self.num_decodes < or_infinity(self.rule.max_decodes)
            and self.budget >= 1
        )

    def chunk(self, tokens: int) -> int:
        """How many of `tokens` a further prefill may compute in this step; 0 for none."""
        if not (self.rule.mixed or not self.num_decodes):
            return 0
        if len(self.chunks) >= or_infinity(self.rule.max_prefills):
            return 0
        if self.rule.whole_prompts:
            return tokens if self.cost(tokens) <= self.budget else 0
        return int(max(0, min(tokens, or_infinity(self.rule.chunk), self.budget)))

    def cost(self, tokens: int) -> float:
        """What a prefill of `tokens` takes from the budget."""
        if not self.rule.padded_tokens:
            return tokens
        longest = max(self.chunks, default=0)
        return (len(self.chunks) + 1) * max(tokens, longest) - len(self.chunks) * longest

    def add_prefill(self, chunk: int) -> None:
        self.budget -= self.cost(chunk)
        self.chunks.append(chunk)


def or_infinity(limit: int | None) -> float:
    """A limit of a rule as a number; None is none."""
    return inf if limit is None else limit
