"""The rows of the Phasor paper: how they judge what was measured."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from scheduler_adapters.commands.reproduce import ReproduceConfig
from scheduler_adapters.papers import phasor
from scheduler_adapters.papers.phasor import CODE, PRODUCTION, SUMMARIES, figures
from scheduler_adapters.papers.phasor_experiment import PhasorExperiment

FACTORS = {"Phasor": 1.0, "DistServe": 1.3, "Splitwise": 2.0}


@pytest.fixture
def experiment(monkeypatch) -> PhasorExperiment:
    """Phasor is ahead by the same factors everywhere."""
    made = PhasorExperiment(ReproduceConfig(paper="phasor", seeds=2))

    def point(system, workload, rate, seed):
        factor = FACTORS.get(system.name, 1.1) + 0.01 * seed
        names = ("ttft_p99_s", "tpot_mean_s", "tpot_p99_s", "e2e_p99_s", "attainment")
        return SimpleNamespace(**dict.fromkeys(names, factor))

    def capacity(system, workload, seed):
        gains = {CODE: 1.5, SUMMARIES: 1.6, PRODUCTION: 1.8}
        losses = {"w/o Phi": 0.95, "w/o mixed pool": 0.9, "w/o defragmentation": 0.85}
        lost = losses.get(system.name, 1.0)
        return gains[workload] * lost if system.name not in ("DistServe", "Splitwise") else 1.0

    made.point, made.capacity = point, capacity
    made.energy = lambda name, seed: (FACTORS[name], 5000.0)
    monkeypatch.setattr(phasor, "experiment_of", lambda config: made)
    monkeypatch.setattr(phasor, "fragment_shares", lambda e, name, b, s: np.array([FACTORS[name]]))
    monkeypatch.setattr(phasor, "starvation", lambda *run: (0.1, 1.0, 48.0, 16.0, 2.5))
    made.shock = lambda name, seed: ((), ())
    return made


def test_rows_judge_orders_sizes_and_losses(experiment):
    rows = figures(ReproduceConfig(paper="phasor"))
    verdicts = {(row.metric, row.workload, row.baseline): row.reproduced for row in rows}
    missed = [key for key, verdict in verdicts.items() if not verdict]
    # In these runs fragments of the baselines are no three times Phasor's, an ablation loses no
    # more in TTFT than another, and code loses less than others without a mixed pool.
    assert {metric.partition(" (")[0].partition(":")[0] for metric, *_ in missed} == {
        "fragmentation",
        "w/o Phi",
        "w/o mixed pool",
        "sensitivity",
    }
    assert sum(not row.pre_set for row in rows) == 4


def test_a_system_with_a_split_is_named_with_it(experiment):
    assert phasor._named(experiment, "Splitwise", CODE) == "Splitwise"
    assert phasor._named(experiment, "DistServe", CODE) == "DistServe (2P/6D)"
