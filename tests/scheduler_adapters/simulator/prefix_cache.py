"""KV blocks that requests with the same beginning share, and the slow engine with such blocks."""

from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.views import Phase
from tests.scheduler_adapters.simulator.reference import ReferenceEngine

Shared = Sequence[tuple[int, int]]
"""For each row: which beginning its prompt shares, and that many tokens of it."""


@dataclass(eq=False)
class Block:
    content: Hashable = None
    holders: int = 0


class PrefixCache:
    """The blocks of one engine, and which of them each row holds."""

    def __init__(self, num_blocks: int, block_tokens: int, shared: Shared) -> None:
        self.size, self.shared = block_tokens, shared
        self.free = deque(Block() for _ in range(num_blocks))
        self.cached: dict[Hashable, list[Block]] = {}
        self.tables: dict[int, list[Block]] = {}

    def content(self, row: int, at: int) -> Hashable:
        beginning, tokens = self.shared[row]
        return ("shared", beginning, at) if (at + 1) * self.size <= tokens else (row, at)

    def hits(self, row: int, context: int) -> list[Block]:
        """The blocks that hold the first tokens of a request, but for its last one."""
        found: list[Block] = []
        for at in range((context - 1) // self.size):
            blocks = self.cached.get(self.content(row, at))
            if not blocks:
                break
            found.append(blocks[0])
        return found

    def need(self, row: int, context: int, more: int = 0) -> tuple[int, int]:
        """Tokens to compute and free blocks to take, to hold `more` tokens beyond the context."""
        hits = self.hits(row, context)
        held = sum(block.holders > 0 for block in hits)
        return context - len(hits) * self.size, -(-(context + more) // self.size) - held

    def start(self, row: int, context: int) -> int:
        """Let a request hold what it hits; the tokens of that."""
        table = self.tables[row] = self.hits(row, context)
        for block in table:
            if not block.holders:
                self.free.remove(block)
            block.holders += 1
        return len(table) * self.size

    def extend(self, row: int, tokens: int) -> None:
        """Give a request blocks for that many tokens; the full ones can be hit from now on."""
        table = self.tables[row]
        for _ in range(-(-tokens // self.size) - len(table)):
            block = self.free.popleft()
            self._forget(block)
            block.holders = 1
            table.append(block)
        for at, block in enumerate(table[: tokens // self.size]):
            if block.content is None:
                block.content = self.content(row, at)
                self.cached.setdefault(block.content, []).append(block)

    def drop(self, row: int) -> None:
        """A request holds its blocks no longer."""
        empty, full = list[Block](), list[Block]()
        for block in reversed(self.tables.pop(row, [])):
            block.holders -= 1
            if not block.holders:
                (empty if block.content is None else full).append(block)
        self.free.extendleft(reversed(empty))
        self.free.extend(full)

    def freed(self, rows: Sequence[int], hit_by: int | None = None, context: int = 0) -> int:
        """Blocks that none holds but these, less those that a waiting request would take."""
        held = Counter(block for row in rows for block in self.tables.get(row, ()))
        for block in () if hit_by is None else self.hits(hit_by, context):
            held.pop(block, None)
        return sum(block.holders == count for block, count in held.items())

    def _forget(self, block: Block) -> None:
        if block.content is not None:
            self.cached[block.content].remove(block)
            block.content = None


class CachingReference(ReferenceEngine):
    """The slow engine on such blocks."""

    def __init__(self, policy: Policy, instance: Instance, shared: Shared) -> None:
        super().__init__(policy, instance)
        self.cache = PrefixCache(instance.kv_blocks, instance.block_tokens, shared)
        self.promised: Counter[int] = Counter()
        """Row -> blocks that it will take."""
        self.numbers: dict[int, int | None] = {}
        """Row -> number of its admission before the newest."""
        self.running: list[int] = []
        """Rows of the residents as an engine serves them, and frees their blocks."""
        self.finished: list[Any] = []

    def _free_blocks(self) -> int:
        return len(self.cache.free) - self.promised.total()

    def _count(self) -> None:
        for live in sorted(self.finished, key=lambda live: self.running.index(live.row)):
            self._drop(live)
        self.finished.clear()
        super()._count()
        self.load.used_blocks = self.instance.kv_blocks - self._free_blocks()

    def _need(self, live: Any, more: int = 0) -> tuple[int, int]:
        return self.cache.need(live.row, live.context, more)

    def _hits(self, live: Any) -> int:
        return live.context - self._need(live)[0]

    def _take_blocks(self, live: Any, blocks: int) -> None:
        self.promised[live.row] += blocks

    def _give_back(self, live: Any) -> None:
        if live.view.generated_tokens == live.output_tokens:
            self.finished.append(live)
        else:
            self._drop(live)

    def _drop(self, live: Any) -> None:
        if live.row in self.running:
            self.running.remove(live.row)
        self.cache.drop(live.row)
        self.promised.pop(live.row, None)

    def _freed(self, victims: list[Any], best: Any) -> int:
        rows = [live.row for live in victims]
        promised = sum(self.promised[row] for row in rows)
        return promised + self.cache.freed(rows, best.row, best.context)

    def _fill(self) -> Any:
        step = super()._fill()
        left = len(step.decodes) + sum(chunk for _, chunk in step.prefills)
        residents = [one for one in step.prefills if one[0].row in self.running]
        newcomers = [one for one in step.prefills if one[0].row not in self.running]
        for live, chunk in residents:
            if chunk < min(live.prefill_left, step.budget.chunk_limit):
                self.running.remove(live.row)  # it gets what is left, so it is served last
                self.running.append(live.row)
        runs = {live.row: (live, live.context) for live in step.decodes}
        runs |= {one.row: (one, one.context - one.prefill_left + chunk) for one, chunk in residents}
        for live, tokens in [runs[row] for row in self.running if row in runs]:
            self._hold(live, tokens)
        left -= len(step.decodes) + sum(chunk for _, chunk in residents)
        step.prefills, closed = residents, False
        for live, _ in newcomers:
            tokens, blocks = self._need(live)
            closed |= not left or blocks > len(self.cache.free)
            if closed:
                self._turn_away(live)
                continue
            chunk = min(tokens, left, int(min(step.budget.chunk_limit, tokens)))
            left -= chunk
            self.running.append(live.row)
            live.to_prefill = live.context - self.cache.start(live.row, live.context)
            live.prefill_left = live.to_prefill
            self._hold(live, live.context - live.prefill_left + chunk)
            step.prefills.append((live, chunk))
        return step

    def _hold(self, live: Any, tokens: int) -> None:
        """Take what the step computes for, and promise a prefill the rest."""
        self.cache.extend(live.row, tokens)
        left = self.instance.blocks(live.context) - len(self.cache.tables[live.row])
        self.promised[live.row] = left if live.prefill_left else 0

    def _admit_one(self, step: Any, live: Any) -> None:
        self.numbers[live.row] = live.view.admission_number
        super()._admit_one(step, live)

    def _turn_away(self, live: Any) -> None:
        """The engine does not admit a request that the step was planned with."""
        self.promised.pop(live.row)
        live.blocks = 0
        live.view.phase = Phase.WAITING
        live.view.admission_number = self.numbers[live.row]
        self.load.num_started -= 1
