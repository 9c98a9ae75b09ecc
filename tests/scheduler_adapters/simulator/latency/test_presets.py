"""Named instances, and the measured data behind some of them."""

import numpy as np
import pandas as pd
import pytest

from lengthwise.errors import ConfigError, DataError
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.presets import SOURCES, preset, presets


def test_every_preset_names_its_source():
    assert {name.partition(":")[2] for name in presets()} == set(SOURCES)


def test_a_measured_preset_without_a_data_folder_asks_for_one():
    with pytest.raises(ConfigError, match=r"set \$LENGTHWISE_DATA"):
        Instance.preset("llama-3-8b@a100-80g:tables")


def test_a_data_folder_without_measurements_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("LENGTHWISE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"tables\.npz.*no such file"):
        preset("llama-3-8b@a100-80g:tables")


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
