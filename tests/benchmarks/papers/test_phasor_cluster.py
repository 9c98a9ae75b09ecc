"""Phasor's test bed: workloads, systems, energy and fragments by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from benchmarks.papers.phasor_cluster import (
    CODE,
    PRODUCTION as BURST,
    SHOCK,
    SMALL,
    SYSTEMS,
    GpuCluster,
    PowerMeter,
    Sampled,
    blocked_fraction,
    bucket,
    p99,
)
from benchmarks.papers.slai import trace_lengths
from scheduler_adapters.views import LoadView


@pytest.fixture(scope="module")
def testbed():
    return GpuCluster("qwen2.5-7b")


def test_lengths_are_of_the_trace_with_the_means_of_the_table():
    trace = trace_lengths().prompt_tokens
    for mean in (128, 3000):  # the mean of all is in between
        tokens = bucket("prompt_tokens", mean)
        assert tokens.mean() == pytest.approx(mean, rel=0.01)
        kept = trace <= tokens.max() if mean == 128 else trace >= tokens.min()
        assert abs(kept.sum() - len(tokens)) < 0.01 * len(tokens)  # equal lengths at its end
    requests = CODE.requests(20_000, 10.0, 0)
    assert requests.prompt_tokens.mean() == pytest.approx(128, rel=0.02)
    assert requests.output_tokens.mean() == pytest.approx(2048, rel=0.02)
    gaps_s = np.diff(BURST.requests(20_000, 10.0, 0).arrival_s)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(3, rel=0.1)


def test_the_shock_arrives_in_bursts_between_90_and_120_seconds():
    arrivals = [BURST.shock(SHOCK, seed).arrival_s for seed in range(20)]
    counts = [np.histogram(arrival_s, [0, 90, 120, 180])[0] for arrival_s in arrivals]
    assert np.mean(counts, axis=0) == pytest.approx([450, 750, 300], rel=0.1)
    assert np.std(counts, axis=0).min() > 40  # a Poisson process has 17 to 27
    assert (np.diff(arrivals[0]) >= 0).all()


def test_a_closed_loop_begins_somewhere_in_its_first_answers():
    output_tokens = CODE.closed_loop(1000, 500, 0).output_tokens
    assert output_tokens[500:].mean() == pytest.approx(2048, rel=0.1)
    assert output_tokens[:500].mean() == pytest.approx(1024, rel=0.1)
    assert output_tokens.min() >= 1


def test_systems_have_their_pools_and_placements(testbed):
    assert SYSTEMS["Phasor"].roles.count("both") == 2
    assert SYSTEMS["2P/6D"].roles == ["prefill"] * 2 + ["decode"] * 6
    made = {name: testbed.placement(system, CODE) for name, system in SYSTEMS.items()}
    assert [made[name].name for name in ("Phasor", "Splitwise", "DistServe", "memory-aware")] == [
        "phasor", "splitwise", "distserve", "memory-aware-pools"
    ]  # fmt: skip
    assert made["w/o Phi"].settings.routing == "queue-length"
    assert made["w/o defragmentation"].settings.theta_frag == -np.inf
    assert made["w/o Phi"].settings.ttft_slo_s == CODE.ttft_slo_s
    assert made["alpha x 2"].settings.cost.alpha == 2 * testbed.cost.alpha
    assert testbed.cost.seconds(1024) == pytest.approx((4.25e-5 * 1024**2 + 6.80e-3 * 1024) / 121)
    assert SYSTEMS["w/o mixed pool"].pools == SYSTEMS["DistServe"].pools == [4, 4, 0]


def test_a_run_at_ease_meets_its_targets_and_a_loop_has_capacity(testbed):
    requests = SMALL.requests(30, 10.0, 0)
    system = SYSTEMS["Phasor"]
    timeline = testbed.run(system, testbed.placement(system, SMALL), requests).timeline
    assert SMALL.slo_is_met(timeline)
    assert not replace(SMALL, tpot_slo_s=0.001).slo_is_met(timeline)
    assert not replace(SMALL, ttft_slo_s=0.001).slo_is_met(timeline)
    assert not SMALL.slo_is_met(timeline.take(np.zeros(30, dtype=bool)))
    short = replace(SMALL, output_tokens=100)
    assert testbed.meets_slo(SYSTEMS["Phasor"], short, 2, 0)
    assert not testbed.meets_slo(SYSTEMS["Phasor"], replace(short, ttft_slo_s=0.01), 40, 0)


def test_a_missing_value_has_no_percentile():
    assert p99(np.array([1.0, 3.0])) == pytest.approx(2.98)
    assert p99(np.array([1.0, np.nan])) == np.inf


def test_free_blocks_are_fragments_while_the_head_fits_nowhere():
    rows = [(0.0, "decode", 25, 30), (0.0, "both", 7, 30), (0.0, "prefill", 90, 30)]
    rows += [(0.5, "decode", -3, 30), (0.5, "decode", 30, 30), (1.0, "decode", 9, 0)]
    samples = pd.DataFrame(rows, columns=["at_s", "role", "free", "head"])
    np.testing.assert_allclose(blocked_fraction(samples, 100), [0.16, 0.0, 0.0])


def test_a_placement_with_samples_decides_as_before(testbed):
    requests, system = BURST.requests(40, 20.0, 0), SYSTEMS["Phasor"]
    placement = testbed.placement(system, BURST)
    sampled = Sampled(placement)
    for trait in ("name", "watch", "watches_prefills", "tick_s", "hands_over_from", "made_for"):
        assert getattr(sampled, trait) == getattr(placement, trait)
    one = testbed.run(system, sampled, requests).timeline
    other = testbed.run(system, testbed.placement(system, BURST), requests).timeline
    np.testing.assert_array_equal(one.finished_s, other.finished_s)
    samples = sampled.samples()
    assert {*samples["at_s"]} >= {0.0, 0.5, 1.0}
    assert (samples["at_s"] == 0.5).sum() == 8


def test_energy_is_that_of_prefills_decodes_and_idle_time():
    meter = PowerMeter(max_num_seqs=10)
    meter.ran(LoadView(num_prefilling=1, num_decoding=3), 2.0, 4)
    meter.ran(LoadView(num_decoding=5), 4.0, 5)
    assert meter.joules(10.0) == pytest.approx(2 * 250 + 4 * 165 + 4 * 55)
