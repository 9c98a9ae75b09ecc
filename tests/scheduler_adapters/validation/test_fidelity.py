"""Real vLLM's timings of a server, read and replayed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lengthwise.errors import DataError
from scheduler_adapters.validation.fidelity import (
    FOLDER,
    RECORDINGS,
    read_timings,
    replay,
)

TIMINGS = pd.DataFrame(
    {
        "request_id": ["a", "b"],
        "input_toks": [100, 200],
        "output_toks": [1, 11],
        "arrival_time": [1000.0, 1001.0],
        "queued_ts": [50.0, 51.25],
        "first_token_ts": [50.5, 52.0],
        "last_token_ts": [50.5, 53.0],
    }
)


@pytest.fixture
def timings_dir(tmp_path):
    def write(table: pd.DataFrame) -> Path:
        folder = tmp_path / FOLDER
        folder.mkdir(parents=True)
        table.to_csv(folder / "t.csv", index=False)
        return tmp_path

    return write


def test_latencies_count_from_the_front_ends_clock(timings_dir):
    timings = read_timings("t.csv", timings_dir(TIMINGS))
    # The second request took 0.25 s longer than the first from the front end to the engine.
    np.testing.assert_allclose(timings.latencies["ttft"], [0.5, 0.75 + 0.25])
    np.testing.assert_allclose(timings.latencies["tpot"], [np.nan, 0.1])
    np.testing.assert_allclose(timings.latencies["e2e"], [0.5, 2.0])
    np.testing.assert_allclose(timings.requests.arrival_s, [0.0, 1.0])


def test_timings_are_put_in_order_of_arrival(timings_dir):
    timings = read_timings("t.csv", timings_dir(TIMINGS.iloc[::-1]))
    assert timings.requests.request_id.tolist() == ["a", "b"]


def test_timings_without_a_column_are_refused_by_name(timings_dir):
    with pytest.raises(DataError, match="no column 'queued_ts'"):
        read_timings("t.csv", timings_dir(TIMINGS.drop(columns="queued_ts")))


def test_timings_of_impossible_requests_are_refused_by_row(timings_dir):
    with pytest.raises(DataError, match="row 1"):
        read_timings("t.csv", timings_dir(TIMINGS.assign(input_toks=[100, 0])))


@pytest.mark.data
@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.preset)
def test_replays_of_real_vllm_are_on_target(recording, data_folder):
    fidelity = replay(recording, data_folder)
    assert fidelity.num_requests == 300
    assert fidelity.on_target, fidelity


@pytest.mark.data
def test_a_model_twice_as_slow_misses_the_targets(data_folder, tmp_path):
    shutil.copytree(data_folder / "llmservingsim", tmp_path / "llmservingsim")
    profile = next(tmp_path.glob("llmservingsim/v1/RTX4090/**/dense.parquet"))
    profile.parent.chmod(0o755)
    profile.chmod(0o644)
    table = pd.read_parquet(profile)
    table.assign(time_us=2 * table.time_us).to_parquet(profile)
    assert not replay(RECORDINGS[0], tmp_path).on_target
