"""Load of one replica, counted from its legs and their tokens. Independent of the engine."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from lengthwise.settings import Count, Positive, checked
from scheduler_adapters.placement import Watch
from scheduler_adapters.routers.legs import Leg


@dataclass(slots=True)
class _RunningLeg:
    leg: Leg
    context_tokens: int
    is_thinking: bool
    answer_tokens: int
    is_started: bool = False
    read_s: float = inf
    """Time at which the reader has read all tokens; inf before the first one."""

    @property
    def tokens(self) -> tuple[str, int, int]:
        """Request, its prompt tokens and its generated tokens."""
        prompt = self.leg.prompt_tokens
        return self.leg.request_id, prompt, self.context_tokens - prompt


class ReplicaLoad:
    """Counts of `InstanceView` for one replica; its KV is that of the contexts of started legs.

    Args:
        watch: limits of the placement by which legs are counted.
        lists_decodes: list the decodes in each report, for a placement that moves them at ticks.
        stall_s: seconds with legs and without a message after which the engine counts as hung.
    """

    @checked
    def __init__(
        self,
        *,
        total_blocks: Count,
        block_tokens: Count = 16,
        watch: Watch | None = None,
        lists_decodes: bool = False,
        stall_s: Positive = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_blocks, self.block_tokens = total_blocks, block_tokens
        self.watch, self.clock = watch or Watch(), clock
        self.lists_decodes, self.stall_s = lists_decodes, stall_s
        self.legs: dict[int, _RunningLeg] = {}
        self.num_begun = self.num_reports = self.num_messages = 0
        self.busy_since_s = self.served_s = clock()
        """Time since which there has been a leg at all times."""
        self.arrived: dict[str, int] = {}
        """Highest number of a leg that has arrived, by router."""

    def begin(self, leg: Leg) -> int:
        """Count a leg that has arrived; return its number for the other calls."""
        if (routed := leg.routed) is not None:
            self.arrived[routed.router] = max(routed.number, self.arrived.get(routed.router, 0))
        if not self.legs:
            self.busy_since_s = self.served_s = self.clock()
        self.num_begun += 1
        answer = leg.generated_tokens - leg.thinking_tokens
        self.legs[self.num_begun] = _RunningLeg(leg, len(leg.token_ids), leg.is_thinking, answer)
        return self.num_begun

    def emitted(self, number: int, token_ids: Sequence[int]) -> None:
        """Count tokens of a leg."""
        one, now_s = self.legs[number], self.clock()
        self.served_s = now_s
        self.num_messages += 1
        one.is_started = True
        one.context_tokens += len(token_ids)
        for token in token_ids:
            if one.is_thinking:
                one.is_thinking = token != one.leg.think_end
            else:
                one.answer_tokens += 1
                read_s = one.read_s if one.read_s < inf else now_s
                one.read_s = max(now_s, read_s) + self.watch.pace_s

    def end(self, number: int) -> None:
        """Forget a leg, ended in any way."""
        del self.legs[number]

    def report(self) -> dict[str, Any]:
        """Return the load at this time."""
        self.num_reports += 1
        legs, watch = self.legs.values(), self.watch
        started = [one for one in legs if one.is_started]
        contexts = [one.context_tokens for one in legs if not one.is_started]
        thinking = [one.context_tokens for one in legs if one.is_thinking]
        answers = [one.answer_tokens for one in legs if not one.is_thinking]
        return {
            "number": self.num_reports,
            "arrived": dict(self.arrived),
            "used_blocks": sum(-(-one.context_tokens // self.block_tokens) for one in started),
            "total_blocks": self.total_blocks,
            "block_tokens": self.block_tokens,
            "num_waiting": len(contexts),
            "num_reasoning": sum(one.is_thinking for one in started),
            "num_answering": sum(not one.is_thinking for one in started),
            "waiting_prompt_tokens": sum(contexts),
            "num_thinking": sum(tokens <= watch.demote_above_tokens for tokens in thinking),
            "num_fresh_answering": sum(tokens < watch.quantum_tokens for tokens in answers),
            "paced_for_s": min((one.read_s for one in legs), default=inf) - self.clock(),
            "prefill_tokens": sum(contexts),
            "prefill_squares": sum(tokens**2 for tokens in contexts),
            "decodes": [one.tokens for one in started] if self.lists_decodes else [],
        }
