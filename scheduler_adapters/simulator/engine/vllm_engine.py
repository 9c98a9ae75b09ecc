"""The simulator with two habits of vLLM V1 that shift real timings: it plans ahead, and it keeps
the prefixes of preempted requests.

For comparisons with a real engine. Policies are compared on the plain `Engine`, where both are
absent, as in the papers.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine.cohort import Live
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance


@dataclass(frozen=True, kw_only=True, slots=True)
class _Eviction:
    """What tells later how many of a victim's blocks were taken by others since."""

    blocks: int
    computed_tokens: int
    """Less than its blocks hold where it was evicted during its prefill."""
    free_blocks_before: int
    taken_blocks: int


class VllmEngine(Engine):
    """Runs requests as vLLM V1 does with async scheduling and prefix caching, its defaults.

    *Planning ahead*: a step is planned when the one before it starts, so that the GPU never waits
    for the scheduler. A request that arrives during a step is not in the next one, but in the one
    after it.

    *Prefix caching*: freed blocks keep their content until they are taken, oldest first and the
    end of a request before its start. A preempted request that comes back prefills only what was
    taken meanwhile. (Prefixes shared between requests are not modelled.)
    """

    def __init__(self, policy: Policy, instance: Instance) -> None:
        super().__init__(policy, instance)
        self.awake_since_s = 0.0
        self.freed_blocks = 0
        self.evictions: dict[int, _Eviction] = {}
        self.resumed: set[int] = set()

    def _deliver(self) -> None:
        """Arrivals known when the step that just ended began; all of them after an idle time."""
        load = self.load
        now_s = load.now_s
        if not self.residents and not self.num_waiting:
            self.awake_since_s = now_s
            super()._deliver()
            return
        step_ends_s = self.record.tick_s
        planned_s = max(step_ends_s[-2] if len(step_ends_s) > 1 else 0.0, self.awake_since_s)
        if self.next_arrival_s > planned_s:
            return
        load.now_s = planned_s
        super()._deliver()
        load.now_s = now_s

    def _finish(self, live: Live) -> None:
        used_blocks = self.used_blocks
        super()._finish(live)
        self.freed_blocks += used_blocks - self.used_blocks

    def _evict(self, live: Live) -> None:
        used_blocks = self.used_blocks
        super()._evict(live)
        blocks = used_blocks - self.used_blocks
        self.freed_blocks += blocks
        self.resumed.discard(live.row)
        self.evictions[live.row] = _Eviction(
            blocks=blocks,
            computed_tokens=live.context - live.prefill_left,
            free_blocks_before=self.total_blocks - used_blocks,
            taken_blocks=self._taken_blocks(),
        )

    def _taken_blocks(self) -> int:
        """Blocks handed out since the start, counted whenever they are handed out again."""
        return self.used_blocks + self.freed_blocks

    def _make_resident(self, live: Live) -> None:
        kept_tokens = self._kept_tokens(live)
        super()._make_resident(live)
        if kept_tokens:
            live.prefill_left -= kept_tokens
            self.resumed.add(live.row)

    def _book_chunks(self, tick: int, changed: list[Live]) -> None:
        """The engine ranks a prefill after its first chunk, which it knows by nothing being done
        before; after a resume something is."""
        first_chunks = [live for live, _ in self.chunks if live.row in self.resumed]
        super()._book_chunks(tick, changed)
        for live in first_chunks:
            self.resumed.remove(live.row)
            if live.prefill_left:
                changed.append(live)

    def _kept_tokens(self, live: Live) -> int:
        """Tokens whose KV is still there, in whole blocks; the last token is computed again."""
        eviction = self.evictions.pop(live.row, None)
        if eviction is None:
            return 0
        taken = self._taken_blocks() - eviction.taken_blocks - eviction.free_blocks_before
        kept_blocks = eviction.blocks - max(0, taken)
        whole_blocks = min(eviction.computed_tokens, live.context - 1) // self.block_tokens
        return max(0, min(kept_blocks, whole_blocks)) * self.block_tokens
