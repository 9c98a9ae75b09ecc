"""Step times of any dense model from kernels measured on a GPU (NVIDIA's aiconfigurator database).

A GPU's folder holds milliseconds of 16-bit matrix products by shape, and of attention by heads,
batch and context, under vLLM. A model's step is the sum of its kernels, interpolated between
measured shapes. Three things are not in the database:

- norms, rotary embedding, activation and KV writes are taken from the bytes they move, at 0.8 of
  the data-sheet bandwidth and 3 us each (the database's own constants for memory-bound kernels);
- a chunk after other tokens takes the difference of two whole prompts;
- decodes beside a prefill count as if alone. By the profiles of `layer_profile.py` they take up to
  1.8 times as long; without that, three of the four servers of `validation/fidelity.py` answer 7 to
  11% too early.

No time between kernels is added. Decode attention of short contexts was measured with keys and
values that fit the cache of the L40S (96 MB), which those of a whole model do not.

Source: ai-dynamo/aiconfigurator, commit 095f58a5, Apache-2.0; vLLM 0.14 on A100, 0.24 elsewhere.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from lengthwise.errors import DataError
from scheduler_adapters.simulator.latency.facts import GpuFacts, ModelFacts
from scheduler_adapters.simulator.latency.kernels.grid import Floats, Grid2, by_count
from scheduler_adapters.simulator.latency.kernels.kernel_latency import (
    MAX_SEQUENCES,
    MAX_TOKENS,
    KernelLatency,
    Link,
    all_reduce_s,
    padded,
)
from scheduler_adapters.workload.table_files import read_table

_SECONDS = 1e-3
_BANDWIDTH_FRACTION = 0.8
_SMALL_KERNEL_S = 3e-6
_CHUNKS = [1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
_BEFORE = [0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768]
"""Grid of the table of chunks: their tokens, and the tokens before them."""


def read_kernel_database(
    folder: Path,
    *,
    model: ModelFacts,
    gpu: GpuFacts,
    num_gpus: int = 1,
    link: Link | None = None,
) -> KernelLatency:
    """Return the latency model of `model` on the GPU whose measurements are in `folder`.

    On more than one GPU (tensor parallel) each holds its share of heads, MLP and vocabulary, and
    over the `link` they sum up every token's vector after attention and after the MLP.

    Raises:
        DataError: a table is missing, has other columns, or lacks attention of the model's shape.
    """
    products = MatrixProducts(folder)
    shard = model.shard(num_gpus)
    decode = Grid2.of_table(_decode_table(folder, shard) * model.layers * _SECONDS)
    tokens_s = model.layers * (block_products_s(products, shard) + _small_s(shard, gpu))
    if link is not None:
        tokens_s = tokens_s + 2 * model.layers * all_reduce_s(model.hidden, num_gpus, link)
    output_layer_s = products.seconds(shard.vocabulary, model.hidden)
    return KernelLatency(
        tokens_s=padded(tokens_s),
        sequences_s=output_layer_s[: MAX_SEQUENCES + 1].tolist(),
        prefill_s=_chunk_table(_prompt_curve(folder, shard), decode),
        decode_s=decode,
    )


class MatrixProducts:
    """Seconds of (m, k) x (k, n) by m, for any n and k."""

    def __init__(self, folder: Path) -> None:
        table = _read(folder, "gemm", ("gemm_dtype", "m", "n", "k"))
        table = table[table.gemm_dtype == "bfloat16"]
        self.counts = sorted(table.m.unique().tolist())
        self.grids = [
            Grid2.of_table(rows.pivot_table(index="n", columns="k", values="latency"))
            for _, rows in table.groupby("m")
        ]

    def seconds(self, n: int, k: int) -> Floats:
        """Return the seconds by m = 0, 1, ..., MAX_TOKENS; shape (MAX_TOKENS + 1,)."""
        measured = [grid.at(n, k) for grid in self.grids]
        return by_count(self.counts, measured, most=MAX_TOKENS) * _SECONDS


def block_products_s(products: MatrixProducts, model: ModelFacts) -> Floats:
    """Return seconds of the four matrix products of one transformer block, by tokens."""
    attention = model.query_heads * model.head_dim
    keys_and_values = 2 * model.kv_heads * model.head_dim
    return np.asarray(
        products.seconds(attention + keys_and_values, model.hidden)
        + products.seconds(model.hidden, attention)
        + products.seconds(2 * model.ffn, model.hidden)
        + products.seconds(model.hidden, model.ffn)
    )


def _small_s(model: ModelFacts, gpu: GpuFacts) -> Floats:
    """Return seconds of the memory-bound kernels of one block, by tokens."""
    query = model.query_heads * model.head_dim
    key = model.kv_heads * model.head_dim
    numbers = (
        2 * 4 * model.hidden  # two norms, each with its residual: two read, two written
        + 2 * (query + key)  # rotary embedding
        + 3 * model.ffn  # activation: gate and up read, one written
        + 2 * 2 * key  # keys and values into the cache
    )
    num_kernels = 5
    bytes_per_s = gpu.bytes_per_s * _BANDWIDTH_FRACTION
    tokens = np.arange(MAX_TOKENS + 1, dtype=np.float64)
    return num_kernels * _SMALL_KERNEL_S + tokens * numbers * 2 / bytes_per_s


def _decode_table(folder: Path, model: ModelFacts) -> pd.DataFrame:
    """Return milliseconds of one block's decode attention: rows batch, columns context."""
    table = _attention(folder, "generation", model)
    table = table.assign(context=table.step + 1)
    return table.pivot_table(index="batch_size", columns="context", values="latency")


def _prompt_curve(folder: Path, model: ModelFacts) -> tuple[Floats, Floats]:
    """Return (prompt tokens, seconds of attention over all blocks) of one prompt alone."""
    table = _attention(folder, "context", model)
    curve = table[table.batch_size == 1].groupby("isl").latency.mean()
    tokens = np.asarray(curve.index, dtype=np.float64)
    return tokens, curve.to_numpy() * model.layers * _SECONDS


def _chunk_table(curve: tuple[Floats, Floats], decode: Grid2) -> Grid2:
    """Return the attention time of chunks: of the prompt up to its end, less that before it.

    It is at least that of the chunk as a prompt of its own, and of one decode with its context.
    """

    def prompt_s(tokens: int) -> float:
        axis, seconds = curve
        longest = axis[-1]
        if tokens > longest:  # the share of attention grows with the square
            return float(seconds[-1] * (tokens / longest) ** 2)
        return float(np.interp(tokens, axis, seconds)) if tokens else 0.0

    def chunk_s(chunk: int, before: int) -> float:
        added_s = prompt_s(before + chunk) - prompt_s(before)
        return max(added_s, prompt_s(chunk), decode.at(1, before + chunk))

    rows = [[chunk_s(chunk, before) for before in _BEFORE] for chunk in _CHUNKS]
    return Grid2(_CHUNKS, _BEFORE, rows)


def _attention(folder: Path, phase: str, model: ModelFacts) -> pd.DataFrame:
    """Return measurements of the model's head shape, interpolated between two head counts.

    Raises:
        DataError: neither the head count nor one on each side of it was measured.
    """
    name = f"{phase}_attention"
    keys = ["batch_size", "isl", "step"]
    table = _read(folder, name, (*keys, "num_heads", "num_key_value_heads", "head_dim"))
    if "window_size" in table:
        table = table[table.window_size == 0]
    table = table[
        (table.num_key_value_heads == model.kv_heads)
        & (table.head_dim == model.head_dim)
        & (table.kv_cache_dtype == "bfloat16")
    ]
    below = table.num_heads[table.num_heads <= model.query_heads].max()
    above = table.num_heads[table.num_heads >= model.query_heads].min()
    if np.isnan(below) or np.isnan(above):
        raise DataError(
            f"{name} was not measured around {model.query_heads} query heads with "
            f"{model.kv_heads} KV heads of {model.head_dim}; use another model or GPU",
            path=folder,
        )
    low = table[table.num_heads == below].groupby(keys).latency.mean()
    high = table[table.num_heads == above].groupby(keys).latency.mean()
    share = 0.0 if above == below else (model.query_heads - below) / (above - below)
    between: pd.DataFrame = (low + share * (high - low)).dropna().reset_index()
    return between


def _read(folder: Path, name: str, columns: tuple[str, ...]) -> pd.DataFrame:
    return read_table(folder / f"{name}_perf.parquet", (*columns, "latency"))
