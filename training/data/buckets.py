"""Buckets of prompts of similar length, which need little padding. NumPy only.

Shapes: G prompts of a bucket, L tokens of its longest.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_CALL_TOKENS: Final = 20
"""Padding that takes a CPU as long as one more call of a small encoder, forward and backward."""


def pad(
    ids: Sequence[Sequence[int]], pad_id: int, min_tokens: int = 2
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (input_ids, attention_mask), int64 (G, L), padded on the right to the longest.

    `min_tokens` is the least L; the exported model takes no less than 2.
    """
    counts = np.array([len(row) for row in ids])
    mask = np.arange(max(counts.max(), min_tokens)) < counts[:, None]
    padded = np.full(mask.shape, pad_id, np.int64)
    padded[mask] = np.concatenate([np.asarray(row, np.int64) for row in ids])
    return padded, mask.astype(np.int64)


def bucket(ids: Sequence[Sequence[int]], size: int) -> list[NDArray[np.int64]]:
    """Return the positions of the prompts, shortest first, in chunks of `size`."""
    order = np.argsort([len(row) for row in ids], kind="stable")
    return [order[start : start + size] for start in range(0, len(order), size)]


def micro_batches(ids: Sequence[Sequence[int]], size: int) -> list[NDArray[np.int64]]:
    """Return the positions of the prompts, shortest first, in chunks of at most `size`.

    Of all such chunks these cost least, by their padding and their number.
    """
    order = np.argsort([len(row) for row in ids], kind="stable")
    costs, starts = [0], [0]
    for end in range(1, len(order) + 1):
        longest = len(ids[order[end - 1]])
        firsts = range(max(0, end - size), end)
        cost, start = min((costs[n] + (end - n) * longest + _CALL_TOKENS, n) for n in firsts)
        costs.append(cost)
        starts.append(start)
    bounds = [len(order)]
    while bounds[-1]:
        bounds.append(starts[bounds[-1]])
    return np.split(order, bounds[-2:0:-1])
