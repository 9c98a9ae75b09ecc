"""Ranking pairs drawn from prompts and their lengths. Pure and seeded; no tokenizer, no torch."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

_ROUNDS: Final = 20
"""Each keeps most candidates; too few after all of them mean that the lengths hardly differ."""


def relative_gap(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return |a - b| / max(a, b) of two lengths > 0: 0 for equal ones, always below 1.

    Source: PARS, the delta filter (its threshold is .2, for reasoning models .25).
    """
    return np.asarray(np.abs(a - b) / np.maximum(a, b))


def sample_pairs(
    lengths: NDArray[np.float64],
    *,
    pairs_per_prompt: float,
    delta: float,
    seed: int | tuple[int, int],
) -> NDArray[np.int64]:
    """Draw ranking pairs of unequal lengths (tokens, > 0, (N,)) with a gap of `delta` or more.

    Returns indices, the longer one first: int64, shape (P, 2). P is round(pairs_per_prompt * N)
    unless the lengths hardly differ; .5 encodes as many prompts as an epoch of all-pairs training.

    Source: PARS, section on pair construction.
    """
    rng = np.random.default_rng(seed)
    wanted = round(pairs_per_prompt * len(lengths))
    kept = [np.empty((0, 2), np.int64)]
    for _ in range(_ROUNDS):
        candidates = rng.integers(len(lengths), size=(wanted, 2))
        a, b = lengths[candidates].T
        keep = (a != b) & (relative_gap(a, b) >= delta)
        kept.append(np.where((a > b)[:, None], candidates, candidates[:, ::-1])[keep])
        if sum(map(len, kept)) >= wanted:
            break
    return np.concatenate(kept)[:wanted]
