"""Step times from per-layer profiles of vLLM on a GPU (LLMServingSim 2.0's profiler, form v1).

A profile folder holds microseconds per layer: `dense` by tokens, `per_sequence` by sequences,
`attention` by (prefill chunk, tokens before it, decodes, their context), mixed steps included.
Source: casys-kaist/LLMServingSim, commit 5daddb21, MIT; recorded under vLLM 0.19.
"""

from pathlib import Path

import pandas as pd

from scheduler_adapters.simulator.latency.kernels.grid import Floats, Grid2, Grid3, by_count
from scheduler_adapters.simulator.latency.kernels.kernel_latency import (
    MAX_SEQUENCES,
    MAX_TOKENS,
    KernelLatency,
    Link,
    all_reduce_s,
    padded,
)
from scheduler_adapters.workload.table_files import read_table

_ONCE = ("embedding", "final_layernorm")
_PER_BLOCK = {"layernorm": 2} | dict.fromkeys(
    ["qkv_proj", "qk_norm", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj"], 1
)
"""Runs of a layer in one transformer block; layers a model lacks are not in its profile."""
_SECONDS = 1e-6


def read_layer_profile(
    folder: Path, *, layers: int, link: Link | None = None, hidden: int = 0
) -> KernelLatency:
    """Return the latency model of the profile in `folder`, for a model of `layers` blocks.

    With a `link` the profile is of one of two tensor-parallel GPUs: after attention and after the
    MLP `hidden` numbers per token are summed over it.

    Raises:
        DataError: a table is missing or has other columns.
    """
    tokens_s = _linear_layers_s(folder, layers=layers)
    if link is not None:
        tokens_s = tokens_s + 2 * layers * all_reduce_s(hidden, 2, link)
    attention = _read(folder, "attention")
    alone = (attention.prefill_chunk == 0) | (attention.n_decode == 0)
    prefill = _times_of(attention[alone], "prefill_chunk", "kv_prefill")
    decode = _times_of(attention[alone], "n_decode", "kv_decode")
    return KernelLatency(
        tokens_s=padded(tokens_s),
        sequences_s=_output_layer_s(folder).tolist(),
        prefill_s=Grid2.of_table(prefill, layers * _SECONDS),
        decode_s=Grid2.of_table(decode, layers * _SECONDS),
        mixed_s=_mixed_tables(attention[~alone], Grid2.of_table(prefill), layers * _SECONDS),
    )


def _linear_layers_s(folder: Path, *, layers: int) -> Floats:
    """Return seconds of all layers but attention and the last, by tokens (MAX_TOKENS + 1,)."""
    dense = _read(folder, "dense").pivot(index="tokens", columns="layer", values="time_us")
    block_us = sum(dense[name] * times for name, times in _PER_BLOCK.items() if name in dense)
    step_us = block_us * layers + sum(dense[name] for name in _ONCE)
    return by_count(dense.index, step_us, most=MAX_TOKENS) * _SECONDS


def _output_layer_s(folder: Path) -> Floats:
    table = _read(folder, "per_sequence").groupby(["sequences", "layer"]).time_us.mean().unstack()
    return by_count(table.index, table.sum(axis=1), most=MAX_SEQUENCES) * _SECONDS


def _times_of(attention: pd.DataFrame, counts: str, contexts: str) -> pd.DataFrame:
    """Return microseconds of one phase alone: rows `counts`, columns `contexts`."""
    phase = attention[attention[counts] > 0]
    return phase.pivot(index=counts, columns=contexts, values="time_us")


def _mixed_tables(both: pd.DataFrame, prefill_us: Grid2, scale: float) -> Grid3:
    """Return the time that decodes add to a chunk, as a mean over the tokens before the chunk.

    Those hardly matter.
    """
    chunks_us = list(map(prefill_us.at, both.prefill_chunk, both.kv_prefill))
    added = both.assign(added_us=both.time_us - chunks_us)
    keys = ["prefill_chunk", "n_decode", "kv_decode"]
    means = added.groupby(keys).added_us.mean().clip(lower=0.0)
    chunks = sorted(both.prefill_chunk.unique())
    return Grid3(chunks, [Grid2.of_table(means.loc[chunk].unstack(), scale) for chunk in chunks])


def _read(folder: Path, name: str) -> pd.DataFrame:
    return read_table(folder / f"{name}.parquet", _COLUMNS[name])


_COLUMNS = {
    "dense": ("layer", "tokens", "time_us"),
    "per_sequence": ("layer", "sequences", "time_us"),
    "attention": ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"),
}
