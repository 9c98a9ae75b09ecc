"""Time of a model run by batch size and length, measured at start-up; decides what is batched.

On a CPU a padded batch of unlike lengths is slower than its prompts one by one, a batch of short
like ones is faster; on a GPU nearly every batch is faster. So nothing is assumed: each served
model is timed on the machine that serves it.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

INVARIANCE: Final = 1e-5
"""Largest difference between a score alone and in a batch that still counts as the same score.

Of a float model. Rounding to INT8 now and then makes a large difference of one in the last place,
so there it must be none."""

_LENGTHS: Final = (8, 16, 32, 64, 128, 256, 512, 1024)

# Batch sizes to time, and the longest prompts in them. On a CPU longer prompts gain nothing from
# batches: one alone already fills the caches.
_BATCHES: Final = {"cpu": (2, 4, 8), "gpu": (2, 4, 8, 16, 32, 64)}
_LONGEST_BATCHED: Final = {"cpu": 64, "gpu": 512}
_REPEATS: Final = 3
"""Of which the fastest counts: the others were disturbed."""
_REPEATS_BATCHED: Final = 2  # Batches are most of the time to start.

Score = Callable[[Sequence[Sequence[int]]], Sequence[float]]


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds of one model run by batch size and padded length."""

    lengths: Sequence[int]
    """Tokens, increasing."""
    seconds: Mapping[int, Sequence[float]]
    """Batch size -> seconds at each of the first of `lengths`; has 1, for all of them."""

    @classmethod
    def measure(
        cls,
        score: Score,
        max_tokens: int,
        vocab_size: int,
        device: str = "cpu",
        *,
        tolerance: float = INVARIANCE,
    ) -> Self:
        """Time `score` on this machine; takes the time of a few dozen runs.

        A model whose scores depend on their batch gets a table without batches, and so is run
        one prompt at a time: a score must not depend on other callers.
        """
        lengths = [length for length in _LENGTHS if length < max_tokens] + [max_tokens]
        alone = {n: [_prompt(n, vocab_size)] for n in lengths}
        seconds = {1: [min(_time_s(score, alone[n]) for _ in range(_REPEATS)) for n in lengths]}
        if is_batch_invariant(score, max_tokens, vocab_size, tolerance):
            short = [length for length in lengths if length <= _LONGEST_BATCHED[device]]
            for batch in _BATCHES[device]:
                seconds[batch] = [
                    alone_s * _times_as_long(score, alone[n] * batch, alone[n])
                    for n, alone_s in zip(short, seconds[1], strict=False)
                ]
        return cls(lengths, seconds)

    @property
    def max_batch(self) -> int:
        """Most prompts in one run."""
        return max(self.seconds)

    @property
    def max_batched_tokens(self) -> int:
        """Longest prompt that may share a run, tokens."""
        return self.lengths[len(self.seconds[self.max_batch]) - 1]

    def predict_s(self, batch: int, tokens: int) -> float:
        """Seconds of a run of `batch` prompts padded to `tokens`, linear between measurements."""
        if batch == 1:
            return self._at(1, tokens)
        sizes = sorted(self.seconds)
        above = min(bisect_left(sizes, batch), len(sizes) - 1)
        if sizes[above] <= batch or above == 0:
            return self._at(sizes[above], tokens) * batch / sizes[above]
        low, high = sizes[above - 1], sizes[above]
        share = (batch - low) / (high - low)
        return (1 - share) * self._at(low, tokens) + share * self._at(high, tokens)

    def _at(self, batch: int, tokens: int) -> float:
        seconds = self.seconds[batch]
        right = min(max(bisect_left(self.lengths, tokens), 1), len(seconds) - 1)
        if right < 1:
            return seconds[0]
        low, high = self.lengths[right - 1], self.lengths[right]
        slope = (seconds[right] - seconds[right - 1]) / (high - low)
        return max(seconds[right - 1] + slope * (tokens - low), seconds[0] / 2)


def is_batch_invariant(
    score: Score, max_tokens: int, vocab_size: int, tolerance: float = INVARIANCE
) -> bool:
    """Whether prompts score the same alone and beside longer ones.

    Dynamic quantization, for one, takes its scale from the whole batch, padding included.
    """
    lengths = {min(length, max_tokens) for length in (3, 6, 13, 24, 41)}
    prompts = [_prompt(length, vocab_size) for length in sorted(lengths)]
    together = score(prompts)
    alone = [score([prompt])[0] for prompt in prompts]
    return all(abs(a - b) <= tolerance for a, b in zip(together, alone, strict=True))


def _prompt(tokens: int, vocab_size: int) -> list[int]:
    """Token ids from all over the vocabulary, always the same."""
    return [7919 * (n + 1) % vocab_size for n in range(tokens)]


def _times_as_long(
    score: Score, prompts: Sequence[Sequence[int]], others: Sequence[Sequence[int]]
) -> float:
    """Time of `prompts` / time of `others`.

    They run in turn: during the start a machine's speed drifts by more than a batch gains.
    """
    others_s = prompts_s = float("inf")
    for _ in range(_REPEATS_BATCHED):
        others_s = min(others_s, _time_s(score, others))
        prompts_s = min(prompts_s, _time_s(score, prompts))
    return prompts_s / others_s


def _time_s(score: Score, prompts: Sequence[Sequence[int]]) -> float:
    started_s = time.perf_counter()
    score(prompts)
    return time.perf_counter() - started_s
