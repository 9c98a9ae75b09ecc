"""Kernel measurements read from a folder."""

from __future__ import annotations

import pandas as pd
import pytest

from lengthwise.errors import DataError
from scheduler_adapters.simulator.latency.facts import GPUS, MODELS
from scheduler_adapters.simulator.latency.kernels.kernel_database import read_kernel_database


@pytest.fixture
def kernel_folder(tmp_path):
    """Kernels that take 1 ns per number touched, so sums can be told on paper."""
    axis = [1024, 4096, 16384, 65536]
    products = [
        ("bfloat16", m, n, k, m * n * k * 1e-12) for m in (1, 2048) for n in axis for k in axis
    ]
    gemm = pd.DataFrame(products, columns=["gemm_dtype", "m", "n", "k", "latency"])
    gemm.to_parquet(tmp_path / "gemm_perf.parquet")
    shape = {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "kv_cache_dtype": "bfloat16",
        "window_size": 0,
    }
    prompts = [
        {"batch_size": 1, "isl": isl, "step": 0, "num_heads": heads, "latency": heads * isl**2}
        for isl in (1, 512, 1024, 2048, 16384)
        for heads in (24, 40)
    ]
    decodes = [
        {"batch_size": b, "isl": 1, "step": s, "num_heads": heads, "latency": heads * b * (s + 1)}
        for b in (1, 128)
        for s in (0, 1023, 16383)
        for heads in (24, 40)
    ]
    for name, rows in (("context", prompts), ("generation", decodes)):
        table = pd.DataFrame(rows).assign(**shape)
        table["latency"] *= 1e-9
        table.to_parquet(tmp_path / f"{name}_attention_perf.parquet")
    return tmp_path


def test_heads_between_two_measured_counts_take_the_time_between(kernel_folder):
    model = MODELS["llama-3-8b"]
    latency = read_kernel_database(kernel_folder, model=model, gpu=GPUS["h200"])
    one_layer_s = latency.decode_s.at(64, 1024) / model.layers
    assert one_layer_s == pytest.approx(32 * 64 * 1024 * 1e-12)


def test_a_chunk_takes_the_difference_of_two_prompts(kernel_folder):
    model = MODELS["llama-3-8b"]
    latency = read_kernel_database(kernel_folder, model=model, gpu=GPUS["h200"])
    expected_s = 32 * (2048**2 - 1024**2) * 1e-12 * model.layers
    assert latency.prefill_s.at(1024, 1024) == pytest.approx(expected_s)
    beyond_s = 32 * (32768**2 - 16384**2) * 1e-12 * model.layers
    assert latency.prefill_s.at(16384, 16384) == pytest.approx(beyond_s)


def test_a_shape_that_was_not_measured_is_refused(kernel_folder):
    with pytest.raises(DataError, match="28 query heads with 4 KV heads"):
        read_kernel_database(kernel_folder, model=MODELS["qwen2.5-7b"], gpu=GPUS["h200"])


def test_a_table_without_a_column_is_refused_by_name(kernel_folder):
    pd.DataFrame({"m": [1]}).to_parquet(kernel_folder / "gemm_perf.parquet")
    with pytest.raises(DataError, match=r"gemm_perf.*no column 'gemm_dtype'"):
        read_kernel_database(kernel_folder, model=MODELS["llama-3-8b"], gpu=GPUS["h200"])


def test_a_damaged_table_is_refused_by_name(kernel_folder):
    (kernel_folder / "gemm_perf.parquet").write_bytes(b"not parquet")
    with pytest.raises(DataError, match=r"gemm_perf.*cannot be read"):
        read_kernel_database(kernel_folder, model=MODELS["llama-3-8b"], gpu=GPUS["h200"])
