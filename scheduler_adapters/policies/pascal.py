"""PASCAL inside one instance: reasoning before answering, each in quanta of tokens."""

from dataclasses import replace
from math import inf

from lengthwise.settings import Count, checked
from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import (
    Capability,
    LoadView,
    Phase,
    Rank,
    RequestView,
    StepRule,
    new_rank,
)

_REASONING, _DEMOTED, _ANSWERING = 0, 1, 2
_ANSWERS = Phase.ANSWERING


class Pascal(Policy):
    """Two queues: reasoning (prefill included), then answering and demoted reasoning.

    Inside a queue the fewest quanta used in the phase go first, then the earliest entry. Missing KV
    blocks are taken from the last in this order; a missing seat evicts no request.

    Args:
        quantum_tokens: generated tokens after which a request follows those with fewer quanta.
        demote_above_tokens: context above which a reasoning request leaves the first queue.
        max_decodes: decodes of a step; the last in the order are left out and keep their KV.
        offload: keep evicted KV in host memory, as in the paper; by default it is recomputed.

    Source: PASCAL, section on intra-instance scheduling; least quanta first, the threshold in
    context tokens.
    """

    name = "pascal"
    traits = Traits(requires=frozenset({Capability.EVICT}), sees_thinking=True)

    @checked
    def __init__(
        self,
        *,
        quantum_tokens: Count = 500,
        demote_above_tokens: Count = 5000,
        max_decodes: Count | None = None,
        offload: bool = False,
    ) -> None:
        self.quantum_tokens = quantum_tokens
        self.demote_above_tokens = demote_above_tokens
        self.rule = StepRule(displace=True, offload=offload, max_decodes=max_decodes)
        if offload:
            self.traits = replace(self.traits, requires=self.traits.requires | {Capability.OFFLOAD})

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        generated = request.generated_tokens
        phase, since, until = self._phase(request, generated)
        quanta, used = divmod(generated - since, self.quantum_tokens)
        left = min(self.quantum_tokens - used, until - generated)
        lane = int(phase != _REASONING)
        key = (quanta, request.enqueued_s((phase, quanta), load.now_s))
        return new_rank(Rank, (key, lane, inf, left, None, (lane, *key), None, False, inf))

    def _phase(self, request: RequestView, generated: int) -> tuple[int, int, float]:
        """Return the phase and the numbers of generated tokens at which it begins and ends."""
        # After an eviction the phase is WAITING or PREFILL; the last queue tells the real one.
        answered = request.queue is not None and request.queue[0] == _ANSWERING
        if answered or request.phase is _ANSWERS:
            return _ANSWERING, request.thinking_tokens, inf
        demoted_at = max(0, self.demote_above_tokens + 1 - request.prompt_tokens)
        if generated >= demoted_at:
            return _DEMOTED, demoted_at, inf
        return _REASONING, 0, demoted_at
