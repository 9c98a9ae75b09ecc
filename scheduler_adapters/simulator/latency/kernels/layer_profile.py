"""Step times from per-layer profiles of vLLM on a GPU (LLMServingSim 2.0's profiler, form v1).

A profile folder holds microseconds per layer: `dense` by tokens, `per_sequence` by sequences,
`attention` by (prefill chunk, tokens before it, decodes, their context), mixed steps included.
Source: casys-kaist/LLMServingSim, commit 5daddb21, MIT; recorded under vLLM 0.19.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import pandas as pd

from scheduler_adapters.simulator.latency.kernels.grid import Floats, Grid2, Grid3, by_count, fill
from scheduler_adapters.simulator.latency.kernels.interconnect import Link, all_reduce_s
from scheduler_adapters.simulator.latency.kernels.kernel_latency import (
    MAX_SEQUENCES,
    MAX_TOKENS,
    KernelLatency,
    padded,
)
from scheduler_adapters.workload.tables import read_table

_ONCE = ("embedding", "final_layernorm")
_PER_BLOCK = {
    "layernorm": 2,
    "qkv_proj": 1,
    "qk_norm": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
"""How often a layer runs in one transformer block; those a model lacks are not in its profile."""
_SECONDS = 1e-6


def read_layer_profile(
    folder: str | PathLike[str],
    *,
    layers: int,
    link: Link | None = None,
    hidden: int = 0,
) -> KernelLatency:
    """The latency model of the profile in `folder`, for a model of `layers` blocks.

    With a `link` the profile is of one of two tensor-parallel GPUs: after attention and after the
    MLP they sum up their `hidden` numbers per token over it.

    Raises:
        DataError: a table is missing or has other columns.
    """
    folder = Path(folder)
    tokens_s = linear_layers_s(folder, layers=layers)
    if link is not None:
        tokens_s = tokens_s + 2 * layers * all_reduce_s(hidden, 2, link)
    attention = _read(folder, "attention")
    prefill = prefill_table(attention)
    return KernelLatency(
        tokens_s=padded(tokens_s),
        sequences_s=_output_layer_s(folder).tolist(),
        prefill_s=_scaled(prefill, layers * _SECONDS),
        decode_s=_scaled(_decode_table(attention), layers * _SECONDS),
        mixed_s=_mixed_tables(attention, prefill, layers * _SECONDS),
    )


def linear_layers_s(folder: Path, *, layers: int) -> Floats:
    """Seconds of all layers but attention and the last one, by tokens (MAX_TOKENS + 1,)."""
    dense = _read(folder, "dense").pivot(index="tokens", columns="layer", values="time_us")
    block_us = sum(dense[name] * times for name, times in _PER_BLOCK.items() if name in dense)
    step_us = block_us * layers + sum(dense[name] for name in _ONCE)
    return by_count(dense.index, step_us, most=MAX_TOKENS) * _SECONDS


def _output_layer_s(folder: Path) -> Floats:
    table = _read(folder, "per_sequence").groupby(["sequences", "layer"]).time_us.mean().unstack()
    return by_count(table.index, table.sum(axis=1), most=MAX_SEQUENCES) * _SECONDS


def prefill_table(attention: pd.DataFrame) -> pd.DataFrame:
    """Microseconds of a chunk alone: rows chunk, columns tokens before it."""
    alone = attention[(attention.n_decode == 0) & (attention.prefill_chunk > 0)]
    return _full(alone.pivot(index="prefill_chunk", columns="kv_prefill", values="time_us"))


def _decode_table(attention: pd.DataFrame) -> pd.DataFrame:
    alone = attention[(attention.prefill_chunk == 0) & (attention.n_decode > 0)]
    return _full(alone.pivot(index="n_decode", columns="kv_decode", values="time_us"))


def _mixed_tables(attention: pd.DataFrame, prefill: pd.DataFrame, scale: float) -> Grid3:
    """What decodes add to a chunk; it hardly depends on the tokens before the chunk: the mean."""
    both = attention[(attention.prefill_chunk > 0) & (attention.n_decode > 0)]
    alone = Grid2(prefill.index, prefill.columns, prefill)
    chunks_us = [
        alone.at(chunk, before)
        for chunk, before in zip(both.prefill_chunk, both.kv_prefill, strict=True)
    ]
    added = both.assign(added_us=both.time_us - chunks_us)
    keys = ["prefill_chunk", "n_decode", "kv_decode"]
    means = added.groupby(keys).added_us.mean().clip(lower=0.0)
    chunks = sorted(both.prefill_chunk.unique())
    return Grid3(chunks, [_scaled(_full(means.loc[chunk].unstack()), scale) for chunk in chunks])


def _full(table: pd.DataFrame) -> pd.DataFrame:
    """The table without holes: two grids overlap in it, each with columns of its own."""
    return pd.DataFrame(fill(table, table.columns), index=table.index, columns=table.columns)


def _scaled(table: pd.DataFrame, scale: float) -> Grid2:
    return Grid2(table.index, table.columns, table * scale)


def _read(folder: Path, name: str) -> pd.DataFrame:
    return read_table(folder / f"{name}.parquet", _COLUMNS[name])


_COLUMNS = {
    "dense": ("layer", "tokens", "time_us"),
    "per_sequence": ("layer", "sequences", "time_us"),
    "attention": ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"),
    "moe": ("tokens", "activated_experts", "time_us"),
}
