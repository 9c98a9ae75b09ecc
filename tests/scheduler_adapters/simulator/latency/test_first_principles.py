"""Latency from public sizes and peaks."""

import pytest

from scheduler_adapters.simulator.latency.facts import GPUS, MODELS
from scheduler_adapters.simulator.latency.first_principles import roofline, staircase
from scheduler_adapters.simulator.latency.presets import PHASOR, SLAI, preset

A100 = GPUS["a100-80g"]
LLAMA = MODELS["llama-3-8b"]


def test_the_staircase_and_the_roofline_agree_on_a_full_batch():
    tiles, roof = staircase(LLAMA, A100), roofline(LLAMA, A100)
    for step in [(128, 128_000, []), (0, 0, [(0, 2048)])]:
        assert tiles.step_s(*step) == pytest.approx(roof.step_s(*step), rel=0.25)


def test_a_prompt_takes_what_the_phasor_paper_shows():
    latency, kv_blocks = preset(PHASOR[0])
    assert latency.step_s(0, 0, [(0, 1024)]) == pytest.approx(0.116, rel=0.03)
    assert kv_blocks == preset("qwen2.5-7b@v100-32g")[1]


def test_the_slai_testbed_holds_the_papers_facts():
    latency, kv_blocks = preset(SLAI)
    assert 8192 / 16 / kv_blocks == pytest.approx(0.0396, abs=1e-4)
    # Batches of about 60 ms make every request of a 0.1 s target critical at an offset of 10.
    assert 0.05 < latency.step_s(40, 40 * 2500, [(0, 472)]) < 0.1
