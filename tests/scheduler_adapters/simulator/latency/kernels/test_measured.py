"""Instances with measured step times: more work takes longer."""

from __future__ import annotations

import pytest

from scheduler_adapters.simulator.latency.facts import MODELS
from scheduler_adapters.simulator.presets import preset, presets

STEPS = [(1, 1000, []), (128, 128_000, []), (0, 0, [(0, 512)]), (64, 64_000, [(1000, 1024)])]


@pytest.mark.data
@pytest.mark.parametrize("name", [name for name, entry in presets().items() if entry.data])
def test_a_measured_preset_takes_longer_for_more_work(name, data_folder):
    latency, kv_blocks = preset(name, data_folder)
    assert kv_blocks > 0
    base = (16, 16_000, [(0, 256)])
    for more in [(64, 64_000, [(0, 256)]), (16, 16_000, [(0, 1024)])]:
        assert 0.001 < latency.step_s(*base) < latency.step_s(*more) < 10


@pytest.mark.data
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("gpu", ["a100-80g", "h100-80g", "h200"])
def test_measured_kernels_and_first_principles_tell_the_same_story(model, gpu, data_folder):
    measured, _ = preset(f"{model}@{gpu}:kernels", data_folder)
    computed, _ = preset(f"{model}@{gpu}")
    for step in STEPS:
        assert 0.5 < measured.step_s(*step) / computed.step_s(*step) < 1.3
