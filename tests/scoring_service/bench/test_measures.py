"""The figures of the bench from what was measured."""

import pytest

from scoring_service.bench.load import Load
from scoring_service.bench.measures import median_ratio, offline, throughput_ratio


def test_ratios_are_of_the_same_round_and_the_median_counts():
    assert median_ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]) == 3.0
    assert median_ratio([2.0], []) is None


def test_throughput_is_compared_on_the_cores_that_the_clients_leave():
    served, bare = Load(1.0, 90.0, client_cores=0.5), Load(1.0, 160.0, client_cores=2.0)
    assert throughput_ratio([served], [bare], cores=2) == pytest.approx(90 / 120)


def test_the_bare_model_runs_every_prompt(tiny_model):
    assert offline(tiny_model, ["yes", "long essay", "poem"], 2).per_s > 0
