"""An engine as the planner reads it: limits, contexts and KV blocks, and the call that evicts."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Generic

from scheduler_adapters.planner.ranked_queue import Item


class EngineView(ABC, Generic[Item]):
    """State of one engine, counted in tokens and KV blocks.

    Each request holds blocks of its own here; an engine that shares blocks overrides the counts.
    """

    max_num_seqs: int
    """Most residents at present."""
    max_tokens: int
    """Token budget of a step."""
    whole_prompts = False
    """True for an engine that computes every prompt in one step."""
    block_tokens: int
    max_growth = 1
    """Most blocks for the next token of a decode."""
    total_blocks: int
    watermark_blocks: int
    """Blocks that an admission leaves free."""

    @abstractmethod
    def output(self, item: Item) -> list[int]:
        """Return the token ids generated so far."""

    @abstractmethod
    def computed(self, item: Item) -> int:
        """Return the number of a resident's tokens that are in the KV cache."""

    @abstractmethod
    def context(self, item: Item) -> int:
        """Return the number of tokens, prompt and output."""

    @abstractmethod
    def free_blocks(self) -> int:
        """Return the number of free KV blocks."""

    @abstractmethod
    def evict(self, item: Item) -> bool:
        """Free a resident's blocks and queue it again; False where the engine cannot free them."""

    def max_chunk(self) -> int | None:
        """Return the engine's own limit on one request's prefill tokens in the next step."""
        return None

    def is_blocked(self, item: Item, admissions: Sequence[Item]) -> bool:
        """Return whether the engine would skip a waiting request after these admissions."""
        return False

    def begin_step(self) -> None:
        """Discard values read for the last plan."""

    def loaded(self) -> Sequence[Item]:
        """Return the waiting requests that hold blocks and could run."""
        return ()

    def need(self, item: Item, more: int = 0) -> tuple[int, int]:
        """Return the tokens that a waiting request has to compute, and its free blocks needed.

        `more`: further tokens for which the blocks must have room.
        """
        context = self.context(item)
        return context, -(-(context + more) // self.block_tokens)

    def most_needed(self, item: Item, more: int = 0) -> tuple[int, int]:
        """Return an upper bound of `need` that is quick to compute."""
        return self.need(item, more)

    def missing(self, item: Item) -> int:
        """Return the blocks that a prefill in progress will still take."""
        size = self.block_tokens
        return -(-self.context(item) // size) - -(-self.computed(item) // size)

    def growth(self, items: Sequence[Item]) -> int:
        """Return the blocks that the next tokens of these decodes take."""
        size = self.block_tokens
        return sum([self.computed(item) % size == 0 for item in items])

    def freed(self, items: Sequence[Item], hit_by: Item | None = None) -> int:
        """Return the blocks that the eviction of all these residents frees.

        `hit_by`: a waiting request, whose cached prefix blocks do not count as freed.
        """
        return sum(-(-self.computed(item) // self.block_tokens) for item in items)

    def release(self, items: Iterable[Item]) -> None:
        """Free the blocks that these residents hold and will not read again."""
