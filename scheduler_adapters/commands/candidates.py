"""Schedulers of our own that were measured and found not worth having: see `beyond`.

Order by prompt and answer changes SLAI's TTFT by nothing or less than nothing: a first token waits
for prompts. Evicting who outlives a prediction costs PARS more prefill than it saves, but in bursts
of long answers, where memory is short. They are kept here so that both can be measured again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import (
    UNLIMITED,
    Capability,
    LoadView,
    Phase,
    Rank,
    RequestView,
    StepRule,
)

_BY_ARRIVAL = Rank()
_DISPLACE = StepRule(displace=True)


class ShortestQuantile(Policy):
    """Waiting requests by the median of their predicted length; running ones go on.

    A running request that outlives its 90% quantile is taken to need as many tokens again as it has
    had, and loses its place, once in its life. What is evicted is computed anew. Requests without
    quantiles are served as FCFS serves them.

    Args:
        displaces: it makes room for a waiting request that is likely to need fewer tokens; if not,
            it only goes first when KV blocks run out.
    """

    name = "shortest-quantile"
    traits = Traits(requires=frozenset({Capability.EVICT}))

    def __init__(self, *, displaces: bool = True) -> None:
        self.rule = _DISPLACE if displaces else UNLIMITED

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        likely, limit = predicted_tokens(request, 0.5), predicted_tokens(request, 0.9)
        if likely is None or limit is None:
            return _BY_ARRIVAL
        has_outlived = request.generated_tokens >= limit
        left = request.generated_tokens if has_outlived else likely
        if request.phase is Phase.WAITING:
            return Rank((left,), evict_key=(left,))
        if request.preemptions:
            return _BY_ARRIVAL
        if has_outlived:
            return Rank(evict_key=(left,), valid_tokens=max(1, left))  # again at twice the length
        return Rank(valid_tokens=limit - request.generated_tokens)

    def step_rule(self, load: LoadView) -> StepRule:
        return self.rule


class LeastWork(Policy):
    """SLAI, with new requests by prompt and predicted answer together, not by the prompt alone."""

    name = "slai-least-work"
    traits = SLAI.traits

    def __init__(self) -> None:
        self.policy = SLAI()

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        rank = self.policy.rank(request, load)
        output = predicted_tokens(request, 0.5)
        if request.phase is not Phase.WAITING or output is None:
            return rank
        return rank._replace(key=(request.prompt_tokens + output,))

    def step_rule(self, load: LoadView) -> StepRule:
        return self.policy.step_rule(load)


def predicted_tokens(request: RequestView, fraction: float) -> float | None:
    """The lowest known quantile of the length from `fraction` on; None where there is none."""
    return next((tokens for known, tokens in request.quantiles if known >= fraction), None)


Quantiles = tuple[tuple[float, float], ...]


class Informed(Policy):
    """Wraps a policy that wants quantiles, for an engine whose requests carry scores only."""

    def __init__(self, policy: Policy, quantiles: Sequence[Quantiles]) -> None:
        self.policy, self.quantiles = policy, quantiles
        self.name = policy.name
        self.traits = policy.traits

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        informed = replace(request, quantiles=self.quantiles[request.number])
        return self.policy.rank(informed, load)

    def step_rule(self, load: LoadView) -> StepRule:
        return self.policy.step_rule(load)
