"""KV blocks of an engine whose requests share none: what its border answers about them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class UnsharedBlocks(ABC, Generic[Item]):
    """The part of a `Border` that counts blocks; each request holds its own until it is done."""

    block_tokens: int
    max_growth = 1

    @abstractmethod
    def context(self, item: Item) -> int: ...

    @abstractmethod
    def computed(self, item: Item) -> int: ...

    def begin_step(self) -> None:
        return None

    def loaded(self) -> Sequence[Item]:
        return ()

    def need(self, item: Item, more: int = 0) -> tuple[int, int]:
        context = self.context(item)
        return context, -(-(context + more) // self.block_tokens)

    def most_needed(self, item: Item, more: int = 0) -> tuple[int, int]:
        return self.need(item, more)

    def missing(self, item: Item) -> int:
        size = self.block_tokens
        return -(-self.context(item) // size) - -(-self.computed(item) // size)

    def growth(self, items: Sequence[Item]) -> int:
        size = self.block_tokens
        return sum([self.computed(item) % size == 0 for item in items])

    def freed(self, items: Sequence[Item], hit_by: Item | None = None) -> int:
        return sum(-(-self.computed(item) // self.block_tokens) for item in items)

    def release(self, items: Iterable[Item]) -> None:
        return None
