"""Step times from per-layer tables of measured or predicted operators (Vidur's form)."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import DataError, SchedulingError
from scheduler_adapters.simulator.latency.models import TABLES, Chunk, CompiledLatency, LatencyModel

TABLE_NAMES = ("linear_ms", "kv_save_ms", "decode_attention_ms", "prefill_attention_ms")
"""Names of the arrays in a file of time tables."""
_CONTEXT_STEP = 64
"""Tokens per column of the decode table and per row of the prefill table."""
_LINEAR_STEP = 8
"""Token counts are padded to a multiple of this before the linear layers."""
_BATCHED = 1.1
"""Factor of attention over several requests against the table of one."""


class TableLatency(LatencyModel):
    """Milliseconds per layer from four tables; a batch outside of them is refused.

    Args:
        linear_ms, kv_save_ms: by tokens.
        decode_attention_ms: by decodes and by mean context / 64, rounded up.
        prefill_attention_ms: by the sum of the contexts / 64, each rounded up, and by the root of
            the summed squares of the chunks.
        layers: of the model.
    """

    def __init__(
        self,
        linear_ms: NDArray[np.float64],
        kv_save_ms: NDArray[np.float64],
        decode_attention_ms: NDArray[np.float64],
        prefill_attention_ms: NDArray[np.float64],
        *,
        layers: int = 32,
    ) -> None:
        reach = min((len(linear_ms) - 1) // _LINEAR_STEP * _LINEAR_STEP, len(kv_save_ms) - 1)
        tokens = np.arange(reach + 1)
        padded = -(-tokens // _LINEAR_STEP) * _LINEAR_STEP
        batched = decode_attention_ms.copy()
        batched[2:] *= _BATCHED
        self._tables = (linear_ms[padded] + kv_save_ms[tokens], batched, prefill_attention_ms)
        # Lists: one look-up costs a third of what it costs in an array.
        self._dense_ms: list[float] = self._tables[0].tolist()
        self._decode_ms: list[list[float]] = batched.tolist()
        self._prefill_ms: list[list[float]] = prefill_attention_ms.tolist()
        self.layers = layers

    @classmethod
    def load(cls, path: Path, *, layers: int = 32) -> TableLatency:
        """Read the four arrays from a .npz file. Raises DataError if one is missing."""
        try:
            with np.load(path) as tables:
                return cls(*(tables[name] for name in TABLE_NAMES), layers=layers)
        except (OSError, KeyError, ValueError, BadZipFile) as error:
            raise DataError(f"is no set of time tables: {error}", path=path) from error

    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        tokens = num_decodes
        for _, chunk in prefills:
            tokens += chunk
        try:
            layer_ms = self._dense_ms[tokens]
            if num_decodes:
                mean_context = decode_context // num_decodes
                layer_ms += self._decode_ms[num_decodes][-(-mean_context // _CONTEXT_STEP)]
            if len(prefills) == 1:
                processed, chunk = prefills[0]
                layer_ms += self._prefill_ms[-(-processed // _CONTEXT_STEP)][chunk]
            elif prefills:
                row = squares = 0
                for processed, chunk in prefills:
                    row += -(-processed // _CONTEXT_STEP)
                    squares += chunk * chunk
                layer_ms += self._prefill_ms[row][round(sqrt(squares))] * _BATCHED
        except IndexError as error:
            raise SchedulingError(
                f"the time tables end before a step of {num_decodes} decodes with context "
                f"{decode_context} and prefill chunks {list(prefills)}; use a smaller token budget "
                "or fewer requests at a time, or tables that reach further"
            ) from error
        return layer_ms * self.layers * 1e-3

    def compiled(self) -> CompiledLatency:
        return TABLES, np.array([float(self.layers)]), *self._tables
