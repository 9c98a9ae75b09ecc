"""The rules of filling one step, for every engine: limits, cost of a prefill, chunks, evictions.

The simulator and the planner of real engines count with a `StepBudget`. Call `begin` before each
step, then place decodes and prefills. A `Step` is in the making by the planner of a real engine. A
`Plan` is the finished step.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from scheduler_adapters.views import Rank, StepRule

Item = TypeVar("Item")


class StepBudget:
    """Capacity left in a step under a policy's rule and the engine's own limits.

    Args:
        rule: the policy's rule for the step.
        max_tokens: the engine's token budget of a step; None: no limit.
        max_num_seqs: most requests that hold KV blocks in the engine.
        max_chunk: most prefill tokens of one request in a step; None: no limit.
        whole_prompts: True for an engine that computes every prompt in one step.
        exceeds_budget: True if a whole prompt larger than the budget may run without other
            prefills. Real engines cannot; in a simulated one the prompt would never run otherwise.
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
        """Most requests that hold KV blocks."""
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
        """Put up to `count` decodes into the step, one token each; return the number placed."""
        if self.num_prefills and not self.mixed:
            return 0
        if count > self.tokens or count > self.max_decodes - self.num_decodes:
            count = max(0, int(min(self.tokens, self.max_decodes - self.num_decodes)))
        self.num_decodes += count
        self.tokens -= count
        return count

    def chunk(self, tokens: int) -> int:
        """Return the number of `tokens` that a further prefill computes in this step."""
        if (self.num_decodes and not self.mixed) or self.num_prefills >= self.max_prefills:
            return 0
        if self.whole_prompts:
            is_first = self.exceeds_budget and not self.num_prefills
            return tokens if is_first or self.cost(tokens) <= self.tokens else 0
        limit = self.chunk_limit if self.chunk_limit < self.tokens else self.tokens
        # Not min() and max(): this is called several times a step. An infinite limit is no int.
        return tokens if tokens <= limit else int(limit) if limit > 0 else 0

    def cost(self, tokens: int) -> int:
        """Return the tokens that a further prefill of `tokens` takes from the budget."""
        if not self.padded_tokens:
            return tokens
        count, longest = self.num_prefills, self.longest
        return (count + 1) * max(tokens, longest) - count * longest

    def place_prefill(self, tokens: int) -> int:
        """Put a `chunk` of `tokens` into the step; return its tokens, 0 for none."""
        if chunk := self.chunk(tokens):
            self.tokens -= self.cost(chunk) if self.padded_tokens else chunk
            self.num_prefills += 1
            if chunk > self.longest:
                self.longest = chunk
        return chunk

    def admits(self, num_residents: int) -> bool:
        """Return whether a further request has a seat and may be admitted in this step."""
        return num_residents < self.seats and self.num_admissions < self.max_admissions


def evict_order(rank: Rank, number: int) -> tuple[bool, tuple[float, ...], int]:
    """Return the sort key of eviction: the resident with the greatest is evicted first.

    `number` is its receive number. The first element is False for a request without an `evict_key`,
    which is not evicted for another one.
    """
    key = rank.evict_key
    return key is not None, key or (), number


def fewest_victims(
    free_blocks: int, free_seats: float, worse: Iterable[tuple[Item, int]]
) -> list[Item] | None:
    """Return the residents to evict for a waiting request; None if it has to wait.

    Only missing blocks evict a request, never a missing seat. A victim frees its seat as well.

    Args:
        free_blocks: left after the request's blocks and the decodes' growth; below 0: missing.
        free_seats: left after the request's seat; below 0: missing.
        worse: residents with a greater `evict_key`, worst first, and the blocks freed by the
            eviction of each and all before it; read only while blocks are missing.
    """
    victims: list[Item] = []
    if (missing := -free_blocks) > 0:
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
    admitted: list[Item]
    """Waiting requests to admit, in this order."""
    chunk: int | None = None
    """Most prefill tokens of one request."""
    left_out: Sequence[Item] = ()
    """Residents that do not run in the step; they keep their KV blocks."""
    last: Item | None = None
    """A resident that is served last: its prefill gets the rest of the budget."""


@dataclass(slots=True)
class Step(Generic[Item]):
    """The requests placed so far, and the budget left."""

    budget: StepBudget
    free_blocks: int
    """Blocks not needed by the requests placed so far."""
    evicted: set[int]
    """Numbers of the requests evicted for this step."""
    prefill_tokens: int = 0
    placed: set[int] = field(default_factory=set)
    """Numbers of the residents in the step."""
    seated: list[Item] = field(default_factory=list)
    """Waiting requests with a seat and blocks, which are placed like prefills in progress."""
    admitted: list[Item] = field(default_factory=list)
    """Waiting requests with tokens in the step."""
    last: Item | None = None
    """A resident to serve last, as in `Plan`."""
    admission_closed: bool = False
