"""Instances with measured step times: more work takes longer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scheduler_adapters.simulator.latency.facts import MODELS
from scheduler_adapters.simulator.presets import preset, presets
from scheduler_adapters.workload.data_folder import ENVIRONMENT

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
