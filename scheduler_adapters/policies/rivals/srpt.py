"""Shortest predicted remaining length first, with limited preemption (TRAIL)."""

from bisect import bisect_right
from collections.abc import Sequence
from math import log

from lengthwise.settings import Count, Fraction, checked
from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import (
    Capability,
    LoadView,
    Phase,
    Quantiles,
    Rank,
    RequestView,
    StepRule,
)


class SRPT(Policy):
    """Least predicted remaining tokens first; the greatest remainder loses its KV blocks first.

    The prediction is the median of the calibrated length distribution, given the tokens so far, and
    is renewed every `every_tokens` tokens. A request with `preempt_share` of its first prediction
    generated is displaced no more.

    Args:
        unknown_tokens: first prediction of a request without quantiles.

    Source: TRAIL (Shahout et al., "Don't Stop Me Now", ICLR 2025), whose limit is .8. There hidden
    states of the model predict the remainder at each token, and a waiting request may also take a
    seat; here it takes KV blocks only.
    """

    name = "srpt"
    traits = Traits(requires=frozenset({Capability.EVICT}), reads_lengths=True)
    rule = StepRule(displace=True)

    @checked
    def __init__(
        self,
        *,
        preempt_share: Fraction = 0.8,
        every_tokens: Count = 16,
        unknown_tokens: Count = 256,
    ) -> None:
        self.preempt_share = preempt_share
        self.every_tokens = every_tokens
        self.unknown_tokens = unknown_tokens

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        known: Quantiles = request.quantiles or ((0.5, self.unknown_tokens),)
        generated = request.generated_tokens
        key = (remaining_tokens(known, generated),)
        limit = self.preempt_share * request.expected_tokens(self.unknown_tokens)
        is_late = request.phase is not Phase.WAITING and generated >= limit
        return Rank(key, valid_tokens=self.every_tokens, evict_key=None if is_late else key)


def remaining_tokens(quantiles: Quantiles, generated: int) -> float:
    """Return the median remaining length, given that more than `generated` tokens are needed.

    The distribution is linear between the quantiles, from 0 on, and exponential above the last.
    """
    shares, tokens = (0.0, *(share for share, _ in quantiles)), (0.0, *(n for _, n in quantiles))
    left = 1 - shares[-1]
    tail = max(1.0, tokens[-1] - tokens[-2]) / log((1 - shares[-2]) / left)
    if generated >= tokens[-1]:
        return tail * log(2)
    median = (1 + _between(generated, tokens, shares)) / 2
    if median >= shares[-1]:
        return tokens[-1] + tail * log(left / (1 - median)) - generated
    return _between(median, shares, tokens) - generated


def _between(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the value at `x` below the last of `xs`, linear between two points."""
    right = bisect_right(xs, x)
    left = right - 1
    return ys[left] + (ys[right] - ys[left]) * (x - xs[left]) / (xs[right] - xs[left])
