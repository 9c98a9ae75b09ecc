"""Two habits of vLLM V1 that shift real timings: it plans ahead, and keeps preempted prefixes.

For comparisons with a real engine: `Engine(policy, instance, habits=VllmHabits())`. Policies are
compared without, as in the papers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.views import LoadView


@dataclass(frozen=True, kw_only=True, slots=True)
class _FreedPrefix:
    """The state at an eviction, to tell later how many of its blocks were taken by others since."""

    blocks: int
    computed_tokens: int
    """Less than its blocks hold where it was evicted during its prefill."""
    free_blocks_before: int
    taken_blocks: int


class VllmHabits:
    """Async scheduling and prefix caching, vLLM's defaults; one object per engine.

    *Planning ahead*: a step is planned when the one before it starts, so that the GPU never waits
    for the scheduler. A request that arrives during a step is not in the next one, but in the one
    after it.

    *Prefix caching*: freed blocks keep their content until they are taken, oldest first and the
    end of a request before its start. A preempted request that comes back prefills only what was
    taken meanwhile. (Prefixes shared between requests are not modelled.)
    """

    def __init__(self) -> None:
        self.awake_since_s = 0.0
        self.freed_blocks = 0
        self.prefixes: dict[int, _FreedPrefix] = {}

    def known_s(self, now_s: float, step_ends_s: Sequence[float], *, is_idle: bool) -> float:
        """Return when the step that is to start now was planned: arrivals until then are in it.

        That is at the start of the step that ended last; at once after an idle time.
        """
        if is_idle:
            self.awake_since_s = now_s
            return now_s
        started_s = step_ends_s[-2] if len(step_ends_s) > 1 else 0.0
        return max(started_s, self.awake_since_s)

    def freed(self, blocks: int) -> None:
        """Count the blocks of a request that finished."""
        self.freed_blocks += blocks

    def evicted(self, live: RequestState, blocks: int, load: LoadView) -> None:
        """Note what a victim has computed; its blocks are not given back yet."""
        self.prefixes[live.row] = _FreedPrefix(
            blocks=blocks,
            computed_tokens=live.now_context - live.prefill_left,
            free_blocks_before=load.total_blocks - load.used_blocks,
            taken_blocks=load.used_blocks + self.freed_blocks,
        )
        self.freed_blocks += blocks

    def keep_prefix(self, live: RequestState, used_blocks: int, block_tokens: int) -> None:
        """Shorten the prefill of a request that is admitted by what is still there."""
        live.kept_tokens = self._kept_tokens(live, used_blocks, block_tokens)
        live.prefill_left -= live.kept_tokens

    def _kept_tokens(self, live: RequestState, used_blocks: int, block_tokens: int) -> int:
        """Return tokens in whole blocks; the last token is computed again."""
        prefix = self.prefixes.pop(live.row, None)
        if prefix is None:
            return 0
        # Blocks handed out since the start, counted whenever they are handed out again.
        taken = used_blocks + self.freed_blocks - prefix.taken_blocks - prefix.free_blocks_before
        kept_blocks = prefix.blocks - max(0, taken)
        whole_blocks = min(prefix.computed_tokens, live.context - 1) // block_tokens
        return max(0, min(kept_blocks, whole_blocks)) * block_tokens
