"""Layer profiles read from a folder."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from scheduler_adapters.simulator.latency.kernels.layer_profile import read_layer_profile


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
