"""Runs of the Phasor experiments: workloads, systems, energy and fragments by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduler_adapters.papers.phasor_runs import (
    ABLATIONS,
    MEMORY_AWARE,
    PHASOR,
    SPLITWISE,
    WORKLOADS,
    GpuCluster,
    PowerMeter,
    Sample,
    Sampled,
    attainment,
    distserve,
    fragmentation,
    percentile,
    slo_is_met,
)
from scheduler_adapters.placement import load_placement
from scheduler_adapters.placements.phasor import Phasor
from scheduler_adapters.views import LoadView

CODE, BURST = WORKLOADS["S-L"], WORKLOADS["BurstGPT"]


@pytest.fixture(scope="module")
def testbed() -> GpuCluster:
    return GpuCluster("qwen2.5-7b")


def test_lengths_are_those_of_the_table_or_spread_around_them():
    requests = CODE.requests(50, 10.0, 0)
    assert set(requests.prompt_tokens) == {128}
    assert set(requests.output_tokens) == {2048}
    spread = replace(BURST, length_cv=1.0).all_at_once(20_000, 1)
    assert spread.prompt_tokens.mean() == pytest.approx(1024, rel=0.05)
    assert spread.output_tokens.std() == pytest.approx(256, rel=0.1)


def test_bursts_have_gaps_three_times_as_spread_as_poisson():
    burst, steady = (np.diff(one.requests(20_000, 10.0, 0).arrival_s) for one in (BURST, CODE))
    assert burst.std() / burst.mean() == pytest.approx(3, rel=0.1)
    assert steady.std() / steady.mean() == pytest.approx(1, rel=0.1)


def test_the_shock_is_between_90_and_120_seconds():
    arrival_s = BURST.shock(0, calm_per_s=5.0, shock_per_s=50.0, end_s=180.0).arrival_s
    counts, _ = np.histogram(arrival_s, [0, 90, 120, 180])
    assert counts[0] == pytest.approx(450, rel=0.2)
    assert counts[1] == pytest.approx(1500, rel=0.2)
    assert counts[2] == pytest.approx(300, rel=0.2)
    assert (np.diff(arrival_s) >= 0).all()


def test_the_first_requests_of_a_closed_loop_are_somewhere_in_their_answers():
    output_tokens = CODE.closed_loop(300, 200, 0).output_tokens
    assert set(output_tokens[200:]) == {2048}
    assert output_tokens[:200].mean() == pytest.approx(1024, rel=0.2)
    assert output_tokens.min() >= 1


def test_systems_have_their_pools_and_placements(testbed):
    assert PHASOR.roles.count("both") == 2
    assert distserve(2).roles == ["prefill"] * 2 + ["decode"] * 6
    systems = (PHASOR, SPLITWISE, distserve(3), MEMORY_AWARE, *ABLATIONS)
    names = [testbed.placement(system, CODE).name for system in systems]
    assert names == ["phasor", "splitwise", "distserve", "memory-aware-pools", *["phasor"] * 3]
    without_phi, static, whole_memory = (testbed.placement(one, CODE) for one in ABLATIONS)
    assert isinstance(without_phi, Phasor)
    assert without_phi.settings.routing == "queue-length"
    assert whole_memory.settings.theta_frag == -np.inf
    assert without_phi.settings.ttft_slo_s == static.settings.ttft_slo_s == CODE.ttft_slo_s
    assert ABLATIONS[1].pools == (4, 4, 0)


def test_the_cost_that_is_calibrated_is_the_time_of_a_prefill(testbed):
    assert testbed.r2 > 0.999
    assert testbed.cost.seconds(1024) == pytest.approx(testbed.instance.prefill_s(1024), rel=0.02)


def test_a_run_at_ease_meets_its_targets_and_a_loop_has_a_capacity(testbed):
    requests = WORKLOADS["S-S"].requests(30, 10.0, 0)
    timeline = testbed.run(PHASOR, WORKLOADS["S-S"], requests).timeline
    assert attainment(timeline, WORKLOADS["S-S"]) == 1
    assert slo_is_met(timeline, WORKLOADS["S-S"])
    assert not slo_is_met(timeline, replace(WORKLOADS["S-S"], tpot_slo_s=0.001))
    assert not slo_is_met(timeline, replace(WORKLOADS["S-S"], ttft_slo_s=0.001))
    assert not slo_is_met(timeline.take(np.zeros(30, dtype=bool)), WORKLOADS["S-S"])
    short = replace(WORKLOADS["S-S"], output_tokens=8)
    assert testbed.meets_slo(PHASOR, short, 2, 0)
    assert not testbed.meets_slo(PHASOR, replace(short, ttft_slo_s=0.03), 40, 0)


def test_a_request_that_misses_has_no_percentile():
    assert percentile(np.array([1.0, 3.0]), 50) == 2
    assert percentile(np.array([1.0, np.nan]), 99) == np.inf


def test_what_remains_of_free_blocks_is_a_fragment():
    def sample(at_s: float, role: str, free_blocks: int) -> Sample:
        return Sample(at_s, 0, role, free_blocks, num_decoding=0, num_queued=0)

    samples = [sample(0.0, "decode", 25), sample(0.0, "both", 7), sample(0.0, "prefill", 9)]
    samples += [sample(0.5, "decode", -3), sample(0.5, "decode", 30)]
    # Of ten blocks: 5 and 7 of twice a hundred; then nothing.
    np.testing.assert_allclose(fragmentation(samples, 10, 100), [0.06, 0.0])


def test_what_is_beside_the_longest_free_run_is_a_fragment_of_an_allocator():
    samples = [Sample(0.0, 0, "decode", 40, num_decoding=1, num_queued=0, unusable=0.25)]
    np.testing.assert_allclose(fragmentation(samples, None, 100), [0.1])


def test_a_placement_that_is_looked_at_decides_as_before(testbed):
    requests = BURST.requests(40, 20.0, 0)
    looked_at = Sampled(testbed.placement(PHASOR, BURST), output_tokens=8)
    one = testbed.run(PHASOR, BURST, requests, placement=looked_at).timeline
    other = testbed.run(PHASOR, BURST, requests).timeline
    np.testing.assert_array_equal(one.finished_s, other.finished_s)
    assert {sample.at_s for sample in looked_at.samples} >= {0.0, 0.5, 1.0}
    assert sum(sample.at_s == 0.5 for sample in looked_at.samples) == 8


def test_energy_is_that_of_prefills_decodes_and_idle_time():
    meter = PowerMeter(max_num_seqs=10)
    meter.ran(LoadView(num_prefilling=1, num_decoding=3), 2.0, 4)
    meter.ran(LoadView(num_decoding=5), 4.0, 5)
    assert meter.joules(10.0) == pytest.approx(2 * 250 + 4 * 165 + 4 * 55)


def test_a_placement_that_is_looked_at_keeps_its_traits() -> None:
    pascal = load_placement("pascal")
    looked_at = Sampled(pascal, output_tokens=8)
    for trait in ("name", "watch", "watches_prefills", "tick_s", "hands_over_from", "made_for"):
        assert getattr(looked_at, trait) == getattr(pascal, trait)
