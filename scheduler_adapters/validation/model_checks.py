"""Errors of the latency presets against measurements that they were not made from."""

from dataclasses import dataclass
from itertools import product

import numpy as np

from scheduler_adapters.simulator.latency.facts import MODELS
from scheduler_adapters.simulator.latency.kernels.grid import Grid2
from scheduler_adapters.simulator.latency.kernels.kernel_database import (
    MatrixProducts,
    block_products_s,
)
from scheduler_adapters.simulator.latency.kernels.measured import (
    KERNEL_FOLDERS,
    PHASE_FILE,
    phase_rows,
    phases,
)
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.timeline.steps import Chunk
from scheduler_adapters.validation.errors import mape
from scheduler_adapters.workload.data_folder import DataDir, data_file
from scheduler_adapters.workload.requests import Floats
from scheduler_adapters.workload.table_files import read_table

_VIDUR = "vidur/profiling/compute/a100/Meta-Llama-3-8B_mlp.parquet"
_V0 = "llmservingsim/v0/H100/meta-llama/Llama-3.1-8B/tp1/layers.parquet"
_MAX_TOKENS = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One comparison."""

    quantity: str
    against: str
    mape_fraction: float
    """Mean of |ours - theirs| / theirs."""
    num_points: int


def compare(ours: Floats, theirs: Floats, *, quantity: str, against: str) -> Check:
    """Return the error of values (N,) at the same points."""
    return Check(
        quantity=quantity, against=against, mape_fraction=mape(ours, theirs), num_points=len(theirs)
    )


def kernel_checks(gpu: str, data_dir: DataDir) -> list[Check]:
    """Return the errors of a GPU's products: between its shapes, and against other profilers."""
    products = MatrixProducts(data_file(KERNEL_FOLDERS[gpu], data_dir))
    checks = [_interpolation_check(products)]
    measured = {"a100-80g": _vidur_block, "h100-80g": _v0_block}.get(gpu)
    if measured is not None:
        tokens, seconds, source = measured(data_dir)
        ours = block_products_s(products, MODELS["llama-3-8b"])[tokens]
        quantity = "products of a Llama-3-8B block"
        checks.append(compare(ours, seconds, quantity=quantity, against=source))
    return checks


def _interpolation_check(products: MatrixProducts) -> Check:
    """Return the error at every second width, interpolated from its neighbours."""
    ours, theirs = [], []
    for count, grid in zip(products.counts, products.grids, strict=True):
        if count > _MAX_TOKENS:
            continue
        widths = [width for width in grid.x if width >= 1024 and width in grid.y]
        kept, left_out = widths[::2], widths[1:-1:2]
        coarse = Grid2(kept, kept, [[grid.at(n, k) for k in kept] for n in kept])
        for n, k in product(left_out, left_out):
            ours.append(coarse.at(n, k))
            theirs.append(grid.at(n, k))
    quantity, source = "products at widths left out", "the same database"
    return compare(np.array(ours), np.array(theirs), quantity=quantity, against=source)


def _vidur_block(data_dir: DataDir) -> tuple[list[int], Floats, str]:
    names = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
    columns = [f"time_stats.{name}.median" for name in names]
    keys = ("num_tokens", "num_tensor_parallel_workers")
    table = read_table(data_file(_VIDUR, data_dir), (*keys, *columns))
    table = table[(table.num_tensor_parallel_workers == 1) & (table.num_tokens <= _MAX_TOKENS)]
    block_ms = table.groupby("num_tokens")[columns].median().sum(axis=1)
    return block_ms.index.to_list(), block_ms.to_numpy() * 1e-3, "Vidur's A100 profile"


def _v0_block(data_dir: DataDir) -> tuple[list[int], Floats, str]:
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    table = read_table(data_file(_V0, data_dir), ("layer_name", "input", "latency(ns)"))
    table = table[table.layer_name.isin(names) & (table.input <= _MAX_TOKENS)]
    block_ns = table.groupby("input")["latency(ns)"].sum()
    source = "LLMServingSim's first H100 profile (q, k, v and gate, up apart)"
    return block_ns.index.to_list(), block_ns.to_numpy() * 1e-9, source


STEPS: list[tuple[int, int, list[Chunk]]] = [
    *((n, n * context, []) for n in (1, 8, 32, 128) for context in (256, 1024, 4096)),
    *((0, 0, [(0, chunk)]) for chunk in (128, 512, 2048)),
    *((n, n * 1024, [(512, 512)]) for n in (8, 32, 128)),
]
"""Decodes alone, a prompt alone, both: where two latency models are compared."""


def step_check(ours: LatencyModel, theirs: LatencyModel, against: str) -> Check:
    """Return the error of a model against another of the same instance, on `STEPS`."""
    ours_s, theirs_s = (np.array([m.step_s(*step) for step in STEPS]) for m in (ours, theirs))
    return compare(ours_s, theirs_s, quantity="steps", against=against)


def phase_checks(name: str, data_dir: DataDir) -> list[Check]:
    """Return the errors on runs that the two curves were not made from: batches, other contexts."""
    latency, _ = phases(name, data_dir)
    rows = phase_rows(name, data_dir)
    prompts = rows[(rows.batch_size.between(2, 16)) & (rows.prompt_size == 512)]
    decodes = rows[(rows.batch_size == 1) & ((rows.prompt_size != 512) | (rows.token_size != 128))]
    prefill_s = [latency.prefill_s[512 * batch] for batch in prompts.batch_size]
    decode_s = [latency.decode_s[1]] * len(decodes)
    compared = (
        ("prefill of 2 to 16 prompts", prefill_s, prompts.prompt_time),
        ("decode at other contexts", decode_s, decodes.token_time),
    )
    source = f"other rows of {PHASE_FILE}"
    return [
        compare(np.array(ours), theirs_ms.to_numpy() * 1e-3, quantity=quantity, against=source)
        for quantity, ours, theirs_ms in compared
    ]
