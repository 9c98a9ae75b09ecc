"""The size and duration of an engine step, in the terms of a latency model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

Chunk = tuple[int, int]
"""One prefill of a step: tokens already processed, tokens in this step."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The arguments of a latency model for one engine step, and its duration."""

    num_decodes: int
    decode_context: int
    num_prefills: int
    prefill_tokens: int
    attention_pairs: float
    """Sum over the prefill chunks of chunk * (tokens before it + chunk / 2)."""
    seconds: float

    @classmethod
    def of(
        cls, num_decodes: int, decode_context: int, prefills: Sequence[Chunk], seconds: float = 0.0
    ) -> Self:
        """Return the record of a step from the arguments of `LatencyModel.step_s`."""
        tokens, pairs = chunk_sizes(prefills)
        return cls(num_decodes, decode_context, len(prefills), tokens, pairs, seconds)


def chunk_sizes(prefills: Sequence[Chunk]) -> tuple[int, float]:
    """Return the tokens of prefill chunks, and the pairs of tokens in their attention."""
    tokens, pairs = 0, 0.0
    for processed, chunk in prefills:
        tokens += chunk
        pairs += chunk * (processed + chunk / 2)
    return tokens, pairs
