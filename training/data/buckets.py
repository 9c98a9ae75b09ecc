"""Buckets of prompts of similar length, which need little padding. NumPy only.

Shapes: G prompts of a bucket, L tokens of its longest.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


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
