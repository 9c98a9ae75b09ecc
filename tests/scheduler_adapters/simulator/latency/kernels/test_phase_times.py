"""Curves of whole prefills and decode steps."""

from __future__ import annotations

import pandas as pd
import pytest

from lengthwise.errors import DataError
from scheduler_adapters.simulator.latency.kernels.phase_times import (
    make_phase_latency,
    read_phase_times,
)


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
