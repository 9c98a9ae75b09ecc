"""Time of a model run by batch size and length, measured at start-up, as the basis for batching.

On a CPU only batches of short prompts of similar length are faster than their prompts one by one.
On a GPU nearly every batch is. So each served model is timed on the machine that serves it.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

INVARIANCE: Final = 1e-5
"""Largest permitted difference between a score alone and in a batch, of a float model.

An INT8 model must give equal scores: rounding may amplify a difference in the last place."""

_LENGTHS: Final = (8, 16, 32, 64, 128, 256, 512, 1024)

# Batch sizes to time, and the longest prompts in them. On a CPU longer prompts gain nothing from
# batches: a single one fills the caches.
_BATCHES: Final = {"cpu": (2, 4, 8), "gpu": (2, 4, 8, 16, 32, 64)}
_LONGEST_BATCHED: Final = {"cpu": 64, "gpu": 512}
_REPEATS: Final = 3
"""Repetitions, of which the fastest counts: other processes disturb the rest."""
_REPEATS_BATCHED: Final = 2  # Batches are most of the time to start.

Score = Callable[[Sequence[Sequence[int]]], Sequence[float]]


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds of one model run by batch size and padded length."""

    lengths: Sequence[int]
    """Tokens, increasing."""
    seconds: Mapping[int, Sequence[float]]
    """Batch size -> seconds at the first of `lengths`; batch size 1 has all of them."""

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
        """Time `score` on this machine; a table without batches if scores depend on their batch."""
        lengths = [length for length in _LENGTHS if length < max_tokens] + [max_tokens]
        alone = {n: [_prompt(n, vocab_size)] for n in lengths}
        seconds = {1: [min(_time_s(score, alone[n]) for _ in range(_REPEATS)) for n in lengths]}
        # Otherwise one prompt runs at a time: a score must not depend on other calls.
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
        """Tokens of the longest prompt that may share a run."""
        return self.lengths[len(self.seconds[self.max_batch]) - 1]

    def predict_s(self, batch: int, tokens: int) -> float:
        """Predict the seconds of a run of `batch` prompts padded to `tokens`, by interpolation."""
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
    """Return whether prompts have the same score alone and in a batch with longer prompts.

    It fails for dynamic quantization, whose scale depends on the whole batch, padding included.
    """
    lengths = {min(length, max_tokens) for length in (3, 6, 13, 24, 41)}
    prompts = [_prompt(length, vocab_size) for length in sorted(lengths)]
    together = score(prompts)
    alone = [score([prompt])[0] for prompt in prompts]
    return all(abs(a - b) <= tolerance for a, b in zip(together, alone, strict=True))


def _prompt(tokens: int, vocab_size: int) -> list[int]:
    return [7919 * (n + 1) % vocab_size for n in range(tokens)]


def _times_as_long(
    score: Score, prompts: Sequence[Sequence[int]], others: Sequence[Sequence[int]]
) -> float:
    # In turn: during the start a machine's speed drifts by more than a batch gains.
    turns = [(_time_s(score, others), _time_s(score, prompts)) for _ in range(_REPEATS_BATCHED)]
    return min(prompts_s for _, prompts_s in turns) / min(others_s for others_s, _ in turns)


def _time_s(score: Score, prompts: Sequence[Sequence[int]]) -> float:
    started_s = time.perf_counter()
    score(prompts)
    return time.perf_counter() - started_s
