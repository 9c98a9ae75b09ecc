"""Step times looked up in per-layer tables of measured or predicted operators (Vidur's form)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from os import PathLike
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from scheduler_adapters.simulator.latency import Chunk, LatencyModel
from scoring_service.errors import DataError, SchedulingError

_CONTEXT_STEP = 64
"""Tokens per column of the decode table and per row of the prefill table."""
_LINEAR_STEP = 8
"""Token counts are padded to a multiple of this before the linear layers."""
_BATCHED = 1.1
"""What attention over several requests costs more than the table of one says."""


@dataclass(frozen=True, eq=False)
class TableLatency(LatencyModel):
    """Milliseconds per layer from four tables; a batch outside of them is refused.

    `linear_ms[tokens]`, `kv_save_ms[tokens]`, `decode_attention_ms[decodes, context / 64]` at the
    mean context rounded up, `prefill_attention_ms[context / 64, chunk]` at the summed contexts,
    each rounded up, and the root of the summed squares of the chunks.
    """

    linear_ms: NDArray[np.float64]
    kv_save_ms: NDArray[np.float64]
    decode_attention_ms: NDArray[np.float64]
    prefill_attention_ms: NDArray[np.float64]
    layers: int = 32

    @classmethod
    def load(cls, path: str | PathLike[str], *, layers: int = 32) -> TableLatency:
        """Read the four arrays from a .npz file.

        Raises:
            DataError: no such file, or a table is missing.
        """
        try:
            with np.load(Path(path)) as tables:
                return cls(
                    linear_ms=tables["linear_ms"],
                    kv_save_ms=tables["kv_save_ms"],
                    decode_attention_ms=tables["decode_attention_ms"],
                    prefill_attention_ms=tables["prefill_attention_ms"],
                    layers=layers,
                )
        except (OSError, KeyError, ValueError, BadZipFile) as error:
            raise DataError(f"is no set of time tables: {error}", path=path) from error

    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        tokens = num_decodes + sum(chunk for _, chunk in prefills)
        padded = -(-tokens // _LINEAR_STEP) * _LINEAR_STEP
        try:
            layer_ms = self.linear_ms[padded] + self.kv_save_ms[tokens]
            if num_decodes:
                mean_context = decode_context // num_decodes
                column = -(-mean_context // _CONTEXT_STEP)
                attention_ms = self.decode_attention_ms[num_decodes, column]
                layer_ms += attention_ms * (_BATCHED if num_decodes > 1 else 1)
            if prefills:
                row = sum(-(-processed // _CONTEXT_STEP) for processed, _ in prefills)
                column = round(sqrt(sum(chunk * chunk for _, chunk in prefills)))
                attention_ms = self.prefill_attention_ms[row, column]
                layer_ms += attention_ms * (_BATCHED if len(prefills) > 1 else 1)
        except IndexError as error:
            raise SchedulingError(
                f"the time tables end before a step of {num_decodes} decodes with context "
                f"{decode_context} and prefill chunks {list(prefills)}; use a smaller token budget "
                "or fewer requests at a time, or tables that reach further"
            ) from error
        return float(layer_ms * self.layers * 1e-3)
