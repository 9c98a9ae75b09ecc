"""Prefill before decode: vLLM's first scheduler, and Orca, which mixes the two."""

from dataclasses import replace
from functools import cache
from typing import Any

from scheduler_adapters.policy import Policy, PolicyWrapper, Traits, load_policy
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView, StepRule, require_at_least

_PREFILL = Rank(lane=0)
_DECODE = Rank(lane=1)


class PrefillFirst(Policy):
    """vLLM V0: a step of whole prompts if one can be admitted, else one token per running request.

    Args:
        max_tokens: token budget of a prefill step.
        padded: count each prompt of a step as the longest one, as in the first releases.
    """

    name = "vllm-prefill-first"
    traits = Traits(is_static=True)

    def __init__(
        self, *, max_tokens: int = 4096, max_resident: int = 256, padded: bool = True
    ) -> None:
        self.rule = StepRule(
            max_tokens=max_tokens,
            max_resident=max_resident,
            mixed=False,
            whole_prompts=True,
            padded_tokens=padded,
        )

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return _PREFILL if request.phase <= Phase.PREFILL else _DECODE


class Orca(Policy):
    """Iteration-level batching: whole prompts share steps with decodes, up to `max_batch` requests.

    Args:
        max_batch: requests at once.
        reserved_blocks: KV blocks that every request takes from the start, enough for the longest
            request. They limit the number of requests, of which at least one runs. None: paged KV,
            which Orca did not have.

    Source: Orca; the reservation as vLLM's paper describes it.
    """

    name = "orca"
    traits = Traits(is_static=True)

    def __init__(self, *, max_batch: int = 32, reserved_blocks: int | None = None) -> None:
        require_at_least(1, max_batch=max_batch)
        if reserved_blocks is not None:
            require_at_least(1, reserved_blocks=reserved_blocks)
        self.max_batch = max_batch
        self.reserved_blocks = reserved_blocks

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return _PREFILL

    def step_rule(self, load: LoadView) -> StepRule:
        if self.reserved_blocks is None:
            return _whole_prompts(self.max_batch)
        return _whole_prompts(
            min(self.max_batch, max(1, load.total_blocks // self.reserved_blocks))
        )


@cache
def _whole_prompts(max_resident: int) -> StepRule:
    # One object per number: engines compare rules by identity first.
    return StepRule(max_resident=max_resident, whole_prompts=True)


class RequestLevel(PolicyWrapper):
    """FasterTransformer: a batch runs until all its requests are done, without new requests.

    The published pseudo-code swaps the names of its two modes; this follows the text.

    Args:
        inside: policy that orders the waiting requests, with its `settings`; of pars it makes the
            static batching of the PARS paper.
    """

    name = "request-level"

    def __init__(self, *, max_batch: int = 8, inside: str = "fcfs", **settings: Any) -> None:
        require_at_least(1, max_batch=max_batch)
        super().__init__(load_policy(inside, **settings))
        self.name = "request-level" + ("" if inside == "fcfs" else f"+{inside}")
        self.traits = replace(self.policy.traits, is_static=False)
        self.fill = StepRule(max_resident=max_batch, whole_prompts=True)
        self.drain = StepRule(max_prefills=0)

    def step_rule(self, load: LoadView) -> StepRule:
        return self.drain if load.num_decoding else self.fill
