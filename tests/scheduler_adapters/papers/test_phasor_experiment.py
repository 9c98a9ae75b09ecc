"""The Phasor experiment: searches and shares on runs that are made up."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from scheduler_adapters.commands.reproduce import ReproduceConfig
from scheduler_adapters.papers.phasor_experiment import (
    CODE,
    MOST_CLIENTS,
    PRODUCTION,
    RATES,
    SUMMARIES,
    PhasorExperiment,
    experiment_of,
    relative_capacities,
    starvation,
)
from scheduler_adapters.papers.phasor_runs import PHASOR, Sample, distserve

CONFIG = ReproduceConfig(paper="phasor", seeds=2)


@pytest.fixture
def experiment(monkeypatch) -> PhasorExperiment:
    """Meets its targets with 80 clients per prefill instance, Phasor with 500."""
    made = PhasorExperiment(CONFIG)

    def meets_slo(system, workload, clients, seed):
        most = 500 if system.name == "Phasor" else 80 * system.pools[0]
        return clients <= most + seed * (workload is CODE)

    monkeypatch.setattr(made.testbed, "meets_slo", meets_slo)
    return made


def test_the_model_is_served_with_its_own_memory_and_prefill_cost():
    qwen, llama = (
        PhasorExperiment(replace(CONFIG, model=model)).testbed
        for model in ("qwen2.5-7b", "llama-3-8b")
    )
    assert llama.cost.model == "llama-3-8b"
    assert qwen.instance.kv_blocks > 2 * llama.instance.kv_blocks
    assert 1 < llama.cost.seconds(1024) / qwen.cost.seconds(1024) < 1.2


def test_a_capacity_is_found_from_either_side(experiment):
    assert experiment.capacity(PHASOR, SUMMARIES, 0) == pytest.approx(500 / 8, rel=0.05)
    assert experiment.capacity(distserve(2), SUMMARIES, 0) == pytest.approx(160 / 8, rel=0.05)
    none = replace(PHASOR, name="none", pools=(0, 8, 0))
    assert experiment.capacity(none, SUMMARIES, 0) == 0
    experiment.testbed.meets_slo = lambda *parts: True
    assert experiment.capacity(PHASOR, PRODUCTION, 0) == MOST_CLIENTS / 8


def test_the_best_split_has_the_highest_capacity(experiment):
    assert experiment.system("DistServe", PRODUCTION).pools == (6, 2, 0)
    assert experiment.one_split().pools == (6, 2, 0)
    ratios = relative_capacities(experiment, PHASOR, PRODUCTION)
    assert len(ratios) == len(experiment.search_seeds(PRODUCTION)) == 2
    assert ratios == pytest.approx([500 / 480] * 2, rel=0.08)
    assert len(experiment.search_seeds(CODE)) == 1


def test_changes_are_paired_by_seed_and_rate(experiment):
    def point(system, workload, rate, seed):
        return SimpleNamespace(e2e_p99_s=rate * (1 + seed) * (0.5 if system is PHASOR else 1.0))

    experiment.point = point
    assert experiment.changes(PRODUCTION, (10, 20), "e2e_p99_s", "Splitwise") == [-0.5, -0.5]
    assert experiment.values("Phasor", PRODUCTION, (10, 20), "e2e_p99_s").tolist() == [
        [5, 10],
        [10, 20],
    ]


def test_starvation_is_waiting_small_batches_and_one_long_queue():
    arrival_s = np.array([10.0, 20.0, 95.0, 100.0, 130.0])
    timeline = SimpleNamespace(
        requests=SimpleNamespace(arrival_s=arrival_s),
        ttft_s=lambda: np.array([0.1, 0.3, 4.0, 6.0, 9.0]),
    )

    def sample(at_s: float, role: str, number: int) -> Sample:
        decoding, queued = (0, number) if role == "prefill" else (number, 0)
        return Sample(at_s, 0, role, 0, num_decoding=decoding, num_queued=queued)

    samples = [sample(50.0, "decode", 6), sample(100.0, "decode", 2), sample(92.0, "decode", 9)]
    samples += [sample(100.0, "prefill", 5), sample(100.0, "prefill", 1)]
    found = starvation(SimpleNamespace(timeline=timeline), SimpleNamespace(samples=samples))
    assert found == pytest.approx((0.2, 5.0, 6.0, 2.0, 5 / 3))


def test_an_experiment_is_made_once_and_energy_is_of_a_whole_run():
    config = ReproduceConfig(paper="phasor", seeds=1, scale=0.005)
    experiment = experiment_of(config)
    assert experiment_of(config) is experiment
    joules, tokens_per_s = experiment.energy("Phasor", 0)
    assert tokens_per_s > 0
    # Eight GPUs draw at least their idle power.
    assert joules * tokens_per_s >= 8 * 55
    assert set(RATES) == {CODE, SUMMARIES, PRODUCTION}
