"""Shortest prompt first, with ageing: an order without predictions."""

from lengthwise.settings import NonNegativeFinite, checked
from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.views import Capability, LoadView, Phase, Rank, RequestView

_RUNNING = Rank()


class ShortestPrompt(Policy):
    """Waiting requests by prompt tokens, less `ageing_tokens_per_s` for each second of the wait.

    All requests age alike, so the key at any time orders as `prompt + rate * arrival` does, which
    never changes. A wait is at most the prompt divided by the rate longer than under FCFS.

    Args:
        ageing_tokens_per_s: 0 for no ageing. The default is ours: the proposals name none.

    Source: linear ageing as proposed for SGLang (pull request 30806). vLLM's proposal (29366) and
    TensorRT-LLM's (12428) add a weighted wait to 1 / (1 + prompt / median) instead.
    """

    name = "shortest-prompt"
    traits = Traits(is_static=True)

    @checked
    def __init__(self, *, ageing_tokens_per_s: NonNegativeFinite = 100.0) -> None:
        self.ageing_tokens_per_s = ageing_tokens_per_s

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        if request.phase is not Phase.WAITING:
            return _RUNNING
        return Rank((self.tokens(request) + self.ageing_tokens_per_s * request.arrival_s,))

    def tokens(self, request: RequestView) -> int:
        """Return the tokens by which a request is ordered."""
        return request.prompt_tokens


class ResidualPrompt(ShortestPrompt):
    """`ShortestPrompt` by the prompt tokens that the prefix cache did not hold at the arrival.

    Source: proposed for vLLM (pull request 51375), which reads the cache anew for each step, counts
    in KV blocks, and has a limit of the wait in place of the ageing.
    """

    name = "residual-prompt"
    traits = Traits(requires=frozenset({Capability.PREFIX_HITS}), is_static=True)

    def tokens(self, request: RequestView) -> int:
        return request.prompt_tokens - request.cached_tokens
