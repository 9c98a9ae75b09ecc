"""Prompts of prescribed lengths."""

from typing import Final

import numpy as np
from tokenizers import Tokenizer

SIGMA: Final = 0.65
"""Spread of log length, about that of instruction data sets."""


class PromptMaker:
    """Seeded random prompts made of words that are one token each.

    Args:
        tokenizer: of the model under test.
        max_tokens: longest prompt, special tokens included.
        seed: of everything random.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, seed: int = 0) -> None:
        words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and word.isascii())
        self._words = np.array([word for word in words if len(word) > 3] or words)
        self._max_tokens = max_tokens
        self._random = np.random.default_rng(seed)

    def lognormal(self, num: int, mean_tokens: float = 34.0) -> list[str]:
        """`num` different prompts whose lengths are lognormal with about that mean."""
        mu = np.log(mean_tokens) - SIGMA**2 / 2
        lengths = np.rint(self._random.lognormal(mu, SIGMA, num))
        return [self.of_length(int(n)) for n in np.clip(lengths, 4, self._max_tokens)]

    def uniform(self, num: int, low: int, high: int) -> list[str]:
        """`num` prompts of `low` to `high` tokens."""
        return [self.of_length(int(n)) for n in self._random.integers(low, high + 1, num)]

    def of_length(self, num_tokens: int) -> str:
        """One prompt of that many tokens, special ones included."""
        return " ".join(self._random.choice(self._words, max(num_tokens - 2, 1)))
