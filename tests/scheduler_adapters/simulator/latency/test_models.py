"""Latency models: interpolation, the fit, the staircase, kernel sums, phases, lockstep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_adapters.simulator.latency.affine_fit import fit_affine
from scheduler_adapters.simulator.latency.facts import GPUS, MODELS
from scheduler_adapters.simulator.latency.first_principles import roofline, staircase
from scheduler_adapters.simulator.latency.kernels.grid import Grid2, Grid3, by_count, fill
from scheduler_adapters.simulator.latency.kernels.kernel_latency import KernelLatency, padded
from scheduler_adapters.simulator.latency.kernels.lockstep import LockstepLatency
from scheduler_adapters.simulator.latency.kernels.phase_times import (
    make_phase_latency,
    read_phase_times,
)
from scheduler_adapters.simulator.latency.models import AffineLatency
from scoring_service.errors import ConfigError, DataError, SchedulingError

A100 = GPUS["a100-80g"]
LLAMA = MODELS["llama-3-8b"]


def flat_grid(seconds: float) -> Grid2:
    return Grid2([1, 2], [0, 1], [[seconds, seconds], [seconds, seconds]])


@given(x=st.floats(0, 20), y=st.floats(0, 20), z=st.floats(1, 20))
def test_a_grid_is_exact_where_the_truth_is_linear_and_beyond_its_last_values(x, y, z):
    def truth(z, x, y):
        return 1 + 2 * x + 3 * y + 4 * x * y + 5 * z

    xs, ys, zs = [0, 3, 7], [0, 1, 10], [1, 2, 9]
    grids = [Grid2(xs, ys, [[truth(z, x, y) for y in ys] for x in xs]) for z in zs]
    assert Grid3(zs, grids).at(z, x, y) == pytest.approx(truth(z, x, y))


def test_a_grid_is_constant_below_its_first_values():
    grid = Grid2([10, 20], [10, 20], [[1.0, 2.0], [3.0, 4.0]])
    assert grid.at(0, 0) == 1.0


def test_holes_are_filled_along_their_row():
    filled = fill([[0.0, np.nan, 20.0, np.nan], [np.nan, 5.0, np.nan, np.nan]], [0, 1, 2, 3])
    np.testing.assert_allclose(filled, [[0, 10, 20, 30], [5, 5, 5, 5]])


def test_counts_between_and_beyond_measurements_follow_the_line():
    np.testing.assert_allclose(by_count([1, 3], [2.0, 6.0], most=5), [2, 2, 4, 6, 8, 10])


def test_steps_are_padded_to_the_sizes_of_captured_graphs():
    times = padded(np.arange(600.0))
    assert [times[tokens] for tokens in (1, 2, 3, 5, 8, 9, 505, 512, 513)] == [
        *(1, 2, 4, 8, 8, 16, 512, 512, 513)
    ]


def test_a_kernel_step_is_the_sum_of_its_parts():
    latency = KernelLatency(
        tokens_s=np.full(100, 1.0).tolist(),
        sequences_s=np.full(10, 10.0).tolist(),
        prefill_s=flat_grid(100.0),
        decode_s=flat_grid(1000.0),
        mixed_s=Grid3([1, 2], [flat_grid(2000.0)] * 2),
    )
    assert latency.step_s(2, 20, []) == 1011
    assert latency.step_s(0, 0, [(0, 5), (3, 7)]) == 211
    assert latency.step_s(2, 20, [(0, 5)]) == 2111


@pytest.mark.parametrize("step", [(100, 100, []), (0, 0, [(0, 100)]), (10, 10, [])])
def test_a_step_beyond_the_kernel_tables_is_refused(step):
    latency = KernelLatency(
        tokens_s=[1.0] * 100,
        sequences_s=[1.0] * 10,
        prefill_s=flat_grid(1.0),
        decode_s=flat_grid(1.0),
    )
    with pytest.raises(SchedulingError, match="kernel tables end"):
        latency.step_s(*step)


def test_a_lockstep_group_waits_for_its_fullest_rank():
    rank = KernelLatency(
        tokens_s=np.arange(1000.0).tolist(),
        sequences_s=[0.0] * 100,
        prefill_s=flat_grid(0.0),
        decode_s=flat_grid(0.0),
    )
    group = LockstepLatency(rank=rank, num_ranks=2, experts_s=[0.5] * 1000)
    assert group.step_s(10, 100, []) == 5.5
    assert group.step_s(10, 100, [(0, 300), (0, 100), (0, 100)]) == 305.5
    assert group.step_s(0, 0, [(0, 300)]) == 300.5
    with pytest.raises(SchedulingError, match="expert tables end"):
        group.step_s(1000, 1000, [])


COEFFICIENT = st.floats(1e-9, 1e-3)


@given(st.lists(COEFFICIENT, min_size=4, max_size=4), st.integers(0, 2**32 - 1))
def test_a_fit_to_affine_steps_gives_the_steps_back(coefficients, seed):
    base_s, per_token_s, per_context_token_s, per_attention_pair_s = coefficients
    truth = AffineLatency(
        base_s=base_s,
        per_token_s=per_token_s,
        per_context_token_s=per_context_token_s,
        per_attention_pair_s=per_attention_pair_s,
    )
    random = np.random.default_rng(seed)
    decodes, context = random.integers(0, 200, 60), random.integers(0, 100_000, 60)
    before, chunk = random.integers(0, 4000, 60), random.integers(1, 2000, 60)
    steps = list(zip(decodes, context, before, chunk, strict=True))
    fit = fit_affine(
        num_decodes=decodes,
        decode_context=context,
        prefill_tokens=chunk,
        seconds=[truth.step_s(n, c, [(b, p)]) for n, c, b, p in steps],
        attention_pairs=chunk * (before + chunk / 2),
    )
    assert fit.mape_fraction < 1e-6
    assert fit.r_squared == pytest.approx(1.0)
    for n, c, b, p in steps:
        assert fit.latency.step_s(n, c, [(b, p)]) == pytest.approx(truth.step_s(n, c, [(b, p)]))


def test_a_fit_never_gives_a_negative_coefficient():
    fit = fit_affine(
        num_decodes=[1, 2, 3, 4, 5],
        decode_context=[10, 20, 30, 40, 50],
        prefill_tokens=[0] * 5,
        seconds=[5.0, 4.0, 3.0, 2.0, 1.0],
    )
    assert fit.latency.per_token_s == fit.latency.per_context_token_s == 0
    assert fit.latency.base_s > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seconds": [1.0, 1.0, 1.0, 0.0]}, "step 3"),
        ({"num_decodes": [1, -1, 1, 1]}, "step 1"),
        ({"decode_context": [1, 1, np.nan, 1]}, "step 2"),
        ({"prefill_tokens": [1, 1, 1]}, "shapes"),
    ],
)
def test_steps_that_cannot_be_are_refused(changes, message):
    columns = {
        "num_decodes": [1, 2, 3, 4],
        "decode_context": [1, 2, 3, 4],
        "prefill_tokens": [0, 0, 0, 0],
        "seconds": [1.0, 1.0, 1.0, 1.0],
    }
    with pytest.raises(DataError, match=message):
        fit_affine(**columns | changes)


def test_too_few_steps_are_refused():
    with pytest.raises(DataError, match="measure more"):
        fit_affine(num_decodes=[1], decode_context=[1], prefill_tokens=[0], seconds=[1.0])


def test_the_staircase_rises_once_per_column_of_tiles():
    model = staircase(LLAMA, A100)
    per_token = model.per_token_s

    def linear_s(tokens):
        return model.step_s(0, 0, [(0, tokens)]) - model.chunk_attention_s(0, tokens)

    assert linear_s(128) - linear_s(1) == pytest.approx(127 * per_token)
    assert linear_s(129) - linear_s(128) == pytest.approx(model.linear_pass_s + per_token)


@given(start=st.integers(0, 5000), tiles=st.integers(1, 4))
def test_the_staircases_mean_ceilings_are_exact_over_a_whole_tile(start, tiles):
    model = staircase(LLAMA, A100)
    contexts = range(start + 1, start + 256 * tiles + 1)
    attention_s = sum(
        model.step_s(1, context, []) - model.linear_pass_s - model.per_token_s
        for context in contexts
    )
    assert attention_s == pytest.approx(model.decode_attention_s(list(contexts)))


def test_chunks_of_whole_tiles_cost_what_the_capacity_bound_counts():
    model = staircase(LLAMA, A100)
    chunk = model.chunk_tokens
    prompt = 8 * chunk
    prefill_s = sum(model.chunk_attention_s(before, chunk) for before in range(0, prompt, chunk))
    decode_s = model.decode_attention_s([prompt + 1])
    linear_s = (prompt + 1) * (model.linear_pass_s / model.tile_columns + model.per_token_s)
    assert model.mean_work_s([prompt], [1]) == pytest.approx(prefill_s + decode_s + linear_s)


def test_the_staircase_and_the_roofline_agree_on_a_full_batch():
    tiles, roof = staircase(LLAMA, A100), roofline(LLAMA, A100)
    for step in [(128, 128_000, []), (0, 0, [(0, 2048)])]:
        assert tiles.step_s(*step) == pytest.approx(roof.step_s(*step), rel=0.25)


def test_a_staircase_without_width_is_refused():
    with pytest.raises(ConfigError, match="width"):
        replace(staircase(LLAMA, A100), width=0)


@pytest.fixture
def phase_file(tmp_path):
    rows = [("m", "g", 2, prompt, 1, 128, 10.0 * prompt, 30.0) for prompt in (128, 512, 1024)] + [
        ("m", "g", 2, 512, batch, 128, took, 30.0 + batch)
        for batch, took in ((2, 9000.0), (4, 18000.0), (8, 7.0))
    ]
    columns = "model hardware tensor_parallel prompt_size batch_size token_size prompt_time "
    table = pd.DataFrame(rows, columns=[*columns.split(), "token_time"])
    path = tmp_path / "perf_model.csv"
    table.to_csv(path, index=False)
    return path


def test_phase_times_are_looked_up_by_tokens_and_by_requests(phase_file):
    rows = read_phase_times(phase_file, model="m", hardware="g", tensor_parallel=2)
    latency = make_phase_latency(rows)
    assert latency.step_s(0, 0, [(0, 256)]) == pytest.approx(2.56)
    assert latency.step_s(4, 4000, []) == pytest.approx(0.034)
    assert latency.step_s(4, 4000, [(0, 508)]) == pytest.approx(5.12 * 1.1)


def test_a_batch_that_ran_out_of_memory_is_not_a_measurement(phase_file):
    rows = read_phase_times(phase_file, model="m", hardware="g", tensor_parallel=2)
    latency = make_phase_latency(rows)
    assert latency.step_s(8, 0, []) == pytest.approx(0.038)


def test_an_unknown_server_is_refused_with_the_list(phase_file):
    with pytest.raises(DataError, match=r"use one of .*'m', 'g', 2"):
        read_phase_times(phase_file, model="m", hardware="g", tensor_parallel=4)
