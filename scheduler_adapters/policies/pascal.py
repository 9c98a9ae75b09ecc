"""PASCAL inside one instance: reasoning before answering, each in quanta of tokens."""

from dataclasses import replace
from math import inf

from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import (
    Capability,
    LoadView,
    Phase,
    Rank,
    RequestView,
    StepRule,
    new_rank,
    require_at_least,
)

_REASONING, _DEMOTED, _ANSWERING = 0, 1, 2
_ANSWERS = Phase.ANSWERING
_PROTECTED = -1
"""First element of the eviction key during a minimum residency: before both queues."""


class Pascal(Policy):
    """Two queues: reasoning (prefill included), then answering and demoted reasoning.

    Inside a queue, whoever used the fewest quanta in its phase goes first, then whoever has been in
    that place longest. Where KV blocks are missing the last in this order makes room; where only a
    seat is, a request waits. What is evicted is computed anew, or kept in host memory (`offload`,
    as in the paper).

    Args:
        quantum_tokens: generated tokens until a request goes behind those that have used fewer.
        demote_above_tokens: context above which a reasoning request leaves the first queue.
        max_decodes: of a step; the last in the order are left out, and keep their KV.
        min_residency_tokens: tokens that a request generates once it has its blocks before others
            may take them; the end of its thinking ends this. Without it requests evict each other
            by turns where an evicted request is computed anew.

    Source: PASCAL, section on intra-instance scheduling; least quanta first, the threshold in
    context tokens.
    """

    name = "pascal"
    traits = Traits(requires=frozenset({Capability.EVICT}), sees_thinking=True)

    def __init__(
        self,
        *,
        quantum_tokens: int = 500,
        demote_above_tokens: int = 5000,
        max_decodes: int | None = None,
        min_residency_tokens: int = 0,
        offload: bool = False,
    ) -> None:
        require_at_least(1, quantum_tokens=quantum_tokens, demote_above_tokens=demote_above_tokens)
        require_at_least(1, max_decodes=1 if max_decodes is None else max_decodes)
        require_at_least(0, min_residency_tokens=min_residency_tokens)
        self.quantum_tokens = quantum_tokens
        self.demote_above_tokens = demote_above_tokens
        self.min_residency_tokens = min_residency_tokens
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
        rank = new_rank(Rank, (key, lane, inf, left, None, (lane, *key), None, False))
        return self._resident_rank(request, rank) if self.min_residency_tokens else rank

    def _resident_rank(self, request: RequestView, rank: Rank) -> Rank:
        """Return the rank with the minimum residency in its eviction key.

        The key of a request that has not decoded since it last waited has one more element. It
        marks the first call for a decode, which starts the residency.
        """
        previous = request.previous.evict_key if request.previous is not None else None
        is_fresh = previous is not None and len(previous) > 1 + len(rank.key)
        if request.phase is Phase.WAITING:
            return rank._replace(evict_key=(rank.lane, *rank.key, 0))
        if request.phase is Phase.PREFILL:
            return rank._replace(evict_key=(_PROTECTED, *rank.key, 0))
        if is_fresh:
            key = (_PROTECTED, *rank.key)
            return rank._replace(evict_key=key, valid_tokens=self.min_residency_tokens)
        return rank._replace(evict_key=(rank.lane, *rank.key))

    def step_rule(self, load: LoadView) -> StepRule:
        return self.rule

    def _phase(self, request: RequestView, generated: int) -> tuple[int, int, float]:
        """Return the phase and the numbers of generated tokens at which it begins and ends."""
        # An evicted request waits or prefills; the queue it was in tells whether it has answered.
        answered = request.queue is not None and request.queue[0] == _ANSWERING
        if answered or request.phase is _ANSWERS:
            return _ANSWERING, request.thinking_tokens, inf
        demoted_at = max(0, self.demote_above_tokens + 1 - request.prompt_tokens)
        if generated >= demoted_at:
            return _DEMOTED, demoted_at, inf
        return _REASONING, 0, demoted_at
