"""RAD's latency model: matrix products in tiles, so that time is a staircase (eq. 2-7).

Source: the RAD paper, section on batch times and Theorem 1. Two slips are repaired: eq. 5 drops the
1/s of eq. 3 (kept inside mu_v), and a chunk ends at token `before + chunk`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np
from numpy.typing import ArrayLike

from scheduler_adapters.simulator.latency.models import Chunk, LatencyModel

TILE_ROWS, TILE_COLUMNS, TILE_REDUCTION = 256, 128, 32
"""Tiles of an A100 in the RAD paper."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StaircaseLatency(LatencyModel):
    """A sum of linear layers, other layers, attention of decodes, and attention of prefills.

    Only the sum of the decodes' contexts is known, so their ceilings count at the mean,
    (tile - 1) / 2 above the context. `decode_attention_s` has the ceilings.
    """

    layers: int
    width: int
    """d: query heads x head dimension."""
    tile_columns: int = TILE_COLUMNS
    linear_pass_s: float
    """1 / mu_lin: all linear layers for one column of tiles."""
    per_token_s: float
    """1 / mu_nlin."""
    tile_pair_s: float
    """1 / (s mu): one product of two tiles, all SMs together."""
    vector_tile_s: float
    """1 / mu_v: one tile of keys or values read for one query, all SMs together."""

    @property
    def chunk_tokens(self) -> int:
        """t_lcm: the smallest chunk of whole tiles."""
        return lcm(TILE_ROWS, self.tile_columns, TILE_REDUCTION)

    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        tokens, seconds = num_decodes, 0.0
        for before, chunk in prefills:
            tokens += chunk
            seconds += self.chunk_attention_s(before, chunk)
        passes = -(-tokens // self.tile_columns)
        rows, columns = TILE_ROWS, self.tile_columns
        row_tiles = decode_context / rows + num_decodes * (rows - 1) / (2 * rows)
        column_tiles = decode_context / columns + num_decodes * (columns - 1) / (2 * columns)
        tiles = self.width / columns * row_tiles + column_tiles * self.width / rows
        return (
            seconds
            + passes * self.linear_pass_s
            + tokens * self.per_token_s
            + self.layers * self.vector_tile_s * tiles
        )

    def decode_attention_s(self, contexts: ArrayLike) -> float:
        """Return N x the sum of T_sa over decodes at `contexts` (N,), with its ceilings (eq. 5)."""
        context = np.asarray(contexts, dtype=np.int64)
        tiles = (
            self.width / self.tile_columns * -(-context // TILE_ROWS)
            + -(-context // self.tile_columns) * self.width / TILE_ROWS
        )
        return float(self.layers * self.vector_tile_s * tiles.sum())

    def chunk_attention_s(self, before: int, chunk: int) -> float:
        """Return the attention seconds of a prefill chunk after `before` tokens (eq. 6, 7)."""
        end = before + chunk
        columns = -(-chunk // self.tile_columns)
        scores = -(-end // TILE_ROWS) * columns * self.width / TILE_REDUCTION
        values = self.width / TILE_ROWS * columns * -(-end // TILE_REDUCTION)
        return self.layers * self.tile_pair_s * (scores + values)

    def mean_work_s(self, prompt_tokens: ArrayLike, output_tokens: ArrayLike) -> float:
        """Return T-bar of Theorem 1: the least seconds of work of a request, mean over (N,)."""
        prompts = np.asarray(prompt_tokens, dtype=np.int64)
        outputs = np.asarray(output_tokens, dtype=np.int64)
        length = float((prompts + outputs).mean())
        decoding_s = sum(
            self.decode_attention_s(np.arange(prompt + 1, prompt + output + 1))
            for prompt, output in zip(prompts, outputs, strict=True)
        ) / len(prompts)
        tile = TILE_ROWS * self.tile_columns * TILE_REDUCTION
        pairs = float((prompts * (prompts + self.chunk_tokens)).mean())
        return (
            length * (self.linear_pass_s / self.tile_columns + self.per_token_s)
            + decoding_s
            + self.layers * self.width * pairs * self.tile_pair_s / tile
        )
