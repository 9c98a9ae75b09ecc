"""UniBoost: arrival time minus a bounded boost that decreases with the work."""

from math import expm1, log

from lengthwise.settings import Count, NonNegativeFinite, PositiveFinite, checked
from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import (
    Capability,
    LoadView,
    Phase,
    Rank,
    RequestView,
)

_RUNNING = Rank()
_LEAST_TOKENS = 1
"""Work of a request whose whole prompt is cached; its last token is always computed."""


class UniBoost(Policy):
    """Waiting requests by `arrival - ln(1 / (1 - exp(-gamma * work))) / gamma`, in seconds.

    The work is that of the uncached prompt tokens. A large gamma gives FCFS, a small one the
    shortest work first. The boost has a limit, so no wait grows without end.

    Args:
        gamma_per_s: inverse of the time scale of the boost.
        us_per_token: microseconds of work for each token.

    Source: Li et al., "Beyond Prediction: Tail-Aware Scheduling for LLM Inference", ICML 2026, as
    proposed for SGLang (pull request 35637): formula, work and defaults are those of its code. Left
    out: gamma adapted to the latencies (off by default there), a new look into the prefix cache for
    each step, and the paper's preemption, of which that code has none.
    """

    name = "uniboost"
    traits = Traits(requires=frozenset({Capability.PREFIX_HITS}), is_static=True)

    @checked
    def __init__(
        self, *, gamma_per_s: PositiveFinite = 10.0, us_per_token: PositiveFinite = 64.0
    ) -> None:
        self.gamma_per_s = gamma_per_s
        self.us_per_token = us_per_token

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        if request.phase is not Phase.WAITING:
            return _RUNNING
        work_s = max(_LEAST_TOKENS, self.tokens(request)) * self.us_per_token / 1e6
        boost_s = -log(max(-expm1(-self.gamma_per_s * work_s), 1e-300)) / self.gamma_per_s
        return Rank((request.arrival_s - boost_s,))

    def tokens(self, request: RequestView) -> float:
        """Return the work of a request in tokens."""
        return request.prompt_tokens - request.cached_tokens


class LearnedUniBoost(UniBoost):
    """`UniBoost` by the uncached prompt tokens and the predicted median of the answer.

    The variant and its defaults are ours. A generated token counts as `output_weight` prompt
    tokens, and a request without a predicted length has `unknown_tokens`.
    """

    name = "uniboost-learned"
    traits = Traits(
        requires=frozenset({Capability.PREFIX_HITS}), is_static=True, reads_lengths=True
    )

    @checked
    def __init__(
        self,
        *,
        output_weight: NonNegativeFinite = 4.0,
        unknown_tokens: Count = 256,
        gamma_per_s: float = 0.1,
    ) -> None:
        super().__init__(gamma_per_s=gamma_per_s)
        self.output_weight = output_weight
        self.unknown_tokens = unknown_tokens

    def tokens(self, request: RequestView) -> float:
        expected = request.expected_tokens(self.unknown_tokens)
        return super().tokens(request) + self.output_weight * expected
