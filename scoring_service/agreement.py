"""Rank agreement of two short lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def tau_b(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Kendall's tau-b, ties counted; None where one side does not vary.

    O(n^2) in time and memory: for windows and golden sets, not for test splits.
    """
    signs_x = np.sign(np.subtract.outer(np.asarray(x), np.asarray(x)))
    signs_y = np.sign(np.subtract.outer(np.asarray(y), np.asarray(y)))
    norm = np.sqrt(np.abs(signs_x).sum() * np.abs(signs_y).sum())
    return None if norm == 0 else float((signs_x * signs_y).sum() / norm)
