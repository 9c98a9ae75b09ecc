"""Named instances, and the measured data behind some of them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.facts import GPUS, MODELS
from scheduler_adapters.simulator.latency.kernels.kernel_database import read_kernel_database
from scheduler_adapters.simulator.latency.kernels.layer_profile import read_layer_profile
from scheduler_adapters.simulator.presets import SLAI, SOURCES, preset, presets
from scheduler_adapters.workload.data_folder import ENVIRONMENT
from scoring_service.errors import ConfigError, DataError

STEPS = [(1, 1000, []), (128, 128_000, []), (0, 0, [(0, 512)]), (64, 64_000, [(1000, 1024)])]


@pytest.fixture
def data_dir() -> Path:
    folder = os.environ.get(ENVIRONMENT)
    if not folder:
        pytest.skip(f"measured data: ${ENVIRONMENT} names no folder")
    return Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, entry in presets().items() if entry.data])
def test_a_measured_preset_takes_longer_for_more_work(name, data_dir):
    latency, kv_blocks = preset(name, data_dir)
    assert kv_blocks > 0
    base = (16, 16_000, [(0, 256)])
    for more in [(64, 64_000, [(0, 256)]), (16, 16_000, [(0, 1024)])]:
        assert 0.001 < latency.step_s(*base) < latency.step_s(*more) < 10


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("gpu", ["a100-80g", "h100-80g", "h200"])
def test_measured_kernels_and_first_principles_tell_the_same_story(model, gpu, data_dir):
    measured, _ = preset(f"{model}@{gpu}:kernels", data_dir)
    computed, _ = preset(f"{model}@{gpu}")
    for step in STEPS:
        assert 0.5 < measured.step_s(*step) / computed.step_s(*step) < 1.3


def test_every_preset_names_its_source():
    assert {entry.source for entry in presets().values()} == set(SOURCES)


def test_a_measured_preset_without_a_data_folder_says_how_to_name_one(monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with pytest.raises(ConfigError, match=r"--data-dir or set \$LENGTHWISE_DATA"):
        Instance.preset("llama-3-8b@h100-80g:kernels")


def test_a_data_folder_without_the_measurements_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match=r"h100_sxm.*no such file"):
        preset("llama-3-8b@h100-80g:kernels", tmp_path)


def test_the_slai_testbed_holds_the_papers_facts():
    latency, kv_blocks = preset(SLAI)
    assert 8192 / 16 / kv_blocks == pytest.approx(0.0396, abs=1e-4)
    # Batches of about 60 ms make every request of a 0.1 s target critical at an offset of 10.
    assert 0.05 < latency.step_s(40, 40 * 2500, [(0, 472)]) < 0.1


@pytest.fixture
def steps(tmp_path):
    """A file of 20 steps that took 1 ms, plus 1 us per token, plus 1 ns per token of context."""
    table = pd.DataFrame({"num_decodes": np.arange(20), "prefill_tokens": np.arange(20) ** 2})
    table["decode_context"] = table.num_decodes * (100 + np.arange(20) % 7)
    tokens = table.num_decodes + table.prefill_tokens
    table["seconds"] = 1e-3 + 1e-6 * tokens + 1e-9 * table.decode_context
    path = tmp_path / "steps.csv"
    table.to_csv(path, index=False)
    return path


def test_steps_of_ones_own_engine_make_a_preset(steps):
    instance = Instance.preset(f"llama-3-8b@a100-80g:affine={steps}")
    assert instance.kv_blocks == Instance.preset("llama-3-8b@a100-80g").kv_blocks
    took_s = instance.latency.step_s(10, 1000, [(0, 100)])
    assert took_s == pytest.approx(1e-3 + 110e-6 + 1e-6, rel=1e-4)


def test_steps_that_cannot_be_are_refused_by_file(steps):
    pd.read_csv(steps).assign(seconds=-1.0).to_csv(steps, index=False)
    with pytest.raises(DataError, match=r"steps\.csv.*step 0"):
        preset(f"llama-3-8b@a100-80g:affine={steps}")


def test_steps_on_an_unknown_instance_are_refused_with_the_list(steps):
    with pytest.raises(ConfigError, match=r"affine=FILE"):
        preset(f"gpt-5@a100-80g:affine={steps}")


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


@pytest.fixture
def layer_folder(tmp_path):
    """A profile with overlapping grids: chunk 100 knows other contexts than chunk 200."""
    names = ["embedding", "final_layernorm", "layernorm", "qkv_proj", "o_proj", "rotary_emb"]
    dense = [(name, tokens, 1.0 * tokens) for name in names for tokens in (8, 16, 2048)]
    columns = ["layer", "tokens", "time_us"]
    pd.DataFrame(dense, columns=columns).to_parquet(tmp_path / "dense.parquet")
    heads = [("lm_head", n, 5.0) for n in (1, 64)] + [("sampler", n, 1.0 * n) for n in (1, 64)]
    columns = ["layer", "sequences", "time_us"]
    pd.DataFrame(heads, columns=columns).to_parquet(tmp_path / "per_sequence.parquet")
    chunks = {(100, 0): 10, (100, 64): 20, (200, 0): 30, (200, 128): 70}
    attention = [(chunk, kv, 0, 0, us) for (chunk, kv), us in chunks.items()]
    decodes = [(n, kv) for n in (1, 2, 4) for kv in (16, 1024)]
    attention += [(0, 0, n, kv, n * kv) for n, kv in decodes]
    attention += [
        (chunk, before, n, kv, us + 3 * n * kv)
        for (chunk, before), us in chunks.items()
        for n, kv in decodes
    ]
    columns = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"]
    pd.DataFrame(attention, columns=columns).to_parquet(tmp_path / "attention.parquet")
    return tmp_path


def test_a_layer_profile_is_summed_over_blocks(layer_folder):
    latency = read_layer_profile(layer_folder, layers=10)
    blocks_us, once_us = 10 * 5 * 8, 2 * 8  # two norms, three others; embedding, last norm
    assert latency.step_s(8, 8 * 100, []) * 1e6 == pytest.approx(
        blocks_us + once_us + 5 + 8 + 10 * 8 * 100
    )


def test_holes_in_a_layer_profile_are_filled_from_their_own_row(layer_folder):
    latency = read_layer_profile(layer_folder, layers=10)
    assert latency.prefill_s.at(100, 128) * 1e6 == pytest.approx(10 * 30)
    assert latency.prefill_s.at(200, 64) * 1e6 == pytest.approx(10 * 50)


def test_decodes_beside_a_chunk_take_what_was_measured_there(layer_folder):
    latency = read_layer_profile(layer_folder, layers=1)
    assert latency.mixed_s is not None
    assert latency.mixed_s.at(150, 3, 500) == pytest.approx(3 * 3 * 500 * 1e-6)


def test_profiles_are_looked_up_without_surprises_between_points(layer_folder):
    latency = read_layer_profile(layer_folder, layers=1)
    times = [latency.step_s(n, n * 200, [(32, 120)]) for n in range(1, 60)]
    assert (np.diff(times) > 0).all()
