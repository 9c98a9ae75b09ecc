"""The rules of filling one step, for every engine: limits, cost of a prefill, chunks, evictions.

The simulator, the planner of real engines and the slow reference in `tests/` all count with a
`StepBudget`: make one for each `StepRule` that a policy gives (a policy gives the same objects
again and again), and call `begin` before each step. Then, in the order in which a step is filled:

    placed = budget.place_decodes(len(decodes))     # as many as there is room for
    chunk = budget.place_prefill(tokens_left)       # 0: the step takes no further prefill
    if budget.admits(num_residents):
        budget.num_admissions += 1

A `Step` is one that the planner of a real engine is filling, the `Plan` what its engine is told.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from scheduler_adapters.views import Rank, StepRule

Item = TypeVar("Item")


class StepBudget:
    """What a step may still take, by a policy's rule joined with the engine's own limits.

    Args:
        rule: of the step.
        max_tokens: the engine's token budget of a step; None: no limit.
        max_num_seqs: requests that may hold KV blocks in the engine.
        max_chunk: the engine's own limit of one request's prefill tokens in a step; None: no limit.
        whole_prompts: whether the engine computes every prompt in one step.
        exceeds_budget: whether a step without other prefills takes a whole prompt that is larger
            than the budget. A real engine cannot; a simulated one must, or the prompt never runs.
    """

    __slots__ = (
        "chunk_limit", "exceeds_budget", "longest", "max_admissions", "max_chunk", "max_decodes",
        "max_prefills", "max_tokens", "mixed", "num_admissions", "num_decodes", "num_prefills",
        "padded_tokens", "rule", "seats", "tokens", "whole_prompts",
    )  # fmt: skip

    def __init__(
        self,
        rule: StepRule,
        *,
        max_tokens: float | None,
        max_num_seqs: int,
        max_chunk: int | None = None,
        whole_prompts: bool = False,
        exceeds_budget: bool = False,
    ) -> None:
        self.rule = rule
        self.max_tokens = min(limit_of(rule.max_tokens), limit_of(max_tokens))
        self.max_decodes = limit_of(rule.max_decodes)
        self.max_prefills = limit_of(rule.max_prefills)
        self.max_admissions = limit_of(rule.max_admissions)
        self.seats = min(max_num_seqs, limit_of(rule.max_resident))
        """Requests that may hold KV blocks."""
        self.whole_prompts = rule.whole_prompts or whole_prompts
        least = min(limit_of(rule.chunk), limit_of(max_chunk))
        self.chunk_limit = inf if self.whole_prompts else least
        self.max_chunk = None if self.chunk_limit == inf else int(self.chunk_limit)
        """Most prefill tokens of one request; None: no limit."""
        self.mixed = rule.mixed
        self.padded_tokens = rule.padded_tokens
        self.exceeds_budget = exceeds_budget
        self.begin()

    def begin(self) -> None:
        """Start with an empty step."""
        self.tokens = self.max_tokens
        """Tokens left; below 0 after a prompt larger than the budget."""
        self.num_decodes = self.num_prefills = self.num_admissions = self.longest = 0

    def takes_decodes(self) -> bool:
        """Return whether the step takes a further decode."""
        return (
            self.tokens >= 1
            and self.num_decodes < self.max_decodes
            and (self.mixed or not self.num_prefills)
        )

    def place_decodes(self, count: int) -> int:
        """Put up to `count` decodes into the step, one token each; return how many found room."""
        if self.num_prefills and not self.mixed:
            return 0
        if count > self.tokens or count > self.max_decodes - self.num_decodes:
            count = max(0, int(min(self.tokens, self.max_decodes - self.num_decodes)))
        self.num_decodes += count
        self.tokens -= count
        return count

    def chunk(self, tokens: int) -> int:
        """Return how many of `tokens` a further prefill computes in this step; 0 for none."""
        if (self.num_decodes and not self.mixed) or self.num_prefills >= self.max_prefills:
            return 0
        if self.whole_prompts:
            is_first = self.exceeds_budget and not self.num_prefills
            return tokens if is_first or self.cost(tokens) <= self.tokens else 0
        limit = self.chunk_limit if self.chunk_limit < self.tokens else self.tokens
        # Not min() and max(): this is asked several times a step. An infinite limit is no int.
        return tokens if tokens <= limit else int(limit) if limit > 0 else 0

    def cost(self, tokens: int) -> int:
        """Return what a prefill of `tokens` takes from the budget, beside those in the step."""
        if not self.padded_tokens:
            return tokens
        count, longest = self.num_prefills, self.longest
        return (count + 1) * max(tokens, longest) - count * longest

    def place_prefill(self, tokens: int) -> int:
        """Put a `chunk` of `tokens` into the step; return its tokens, 0 for none."""
        chunk = self.chunk(tokens)
        if chunk:
            self.tokens -= self.cost(chunk) if self.padded_tokens else chunk
            self.num_prefills += 1
            if chunk > self.longest:
                self.longest = chunk
        return chunk

    def admits(self, num_residents: int) -> bool:
        """Return whether a seat is free beside `num_residents`, and the step admits one more."""
        return num_residents < self.seats and self.num_admissions < self.max_admissions


def evict_order(rank: Rank, number: int) -> tuple[bool, tuple[float, ...], int]:
    """Return the place of a resident in the order of eviction: the greatest goes first.

    `number` is its receive number. A request without an `evict_key` goes for no other: its first
    element is False.
    """
    key = rank.evict_key
    return key is not None, key or (), number


def fewest_victims(
    free_blocks: int, free_seats: float, worse: Iterable[tuple[Item, int]]
) -> list[Item] | None:
    """Return the residents to evict for a waiting request; None where it has to wait.

    Residents go for blocks only, and their seats come with them: where there are blocks, a request
    without a seat waits until one is free.

    Args:
        free_blocks: left once the request has its own, and each decode that of its next token.
        free_seats: left once the request has its own; of both, below 0 is what is missing.
        worse: residents with a greater `evict_key`, worst first, and the blocks that are freed once
            it and those before it are gone; read only where blocks are missing.
    """
    victims: list[Item] = []
    missing = -free_blocks
    if missing > 0:
        for victim, freed_blocks in worse:
            victims.append(victim)
            if freed_blocks >= missing:
                missing = 0
                break
    return victims if missing <= 0 and free_seats + len(victims) >= 0 else None


def limit_of(limit: float | None) -> float:
    """Return a limit as a number: infinity for None."""
    return inf if limit is None else limit


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
