"""SLAI: points of a run, the search for a capacity, and the criteria on them."""

import numpy as np
import pytest

from benchmarks.papers.runs import ReproduceConfig
from benchmarks.papers.slai import RATES, SLO_S, SlaiExperiment, trace_lengths
from scheduler_adapters.workload.data_folder import ENVIRONMENT

GOOD = {**SLO_S, "mean_ttft_s": 0.5, "mean_ttft_paying_s": 0.4}


@pytest.fixture
def experiment():
    return SlaiExperiment(ReproduceConfig(paper="slai", seeds=2, scale=0.02))


@pytest.mark.parametrize("name", SLO_S)
def test_a_capacity_meets_its_targets_to_the_edge_and_no_further(name, experiment):
    def run(system, *, rate, paying, seed):
        return GOOD | {name: GOOD[name] + (0.001 if rate > 1.5 else 0.0)}

    experiment.run = run
    assert experiment.capacity("SLAI", 0.05) == pytest.approx(1.5, rel=0.03)


def test_targets_are_held_by_the_worst_point(experiment, rows_of):
    late = GOOD | {"tbt_p99_paying_s": 0.11}

    def run(system, *, rate, paying, seed):
        return late if (system, rate) == ("SLAI", 1.4) else GOOD

    experiment.run = run
    sarathi, slai = rows_of(experiment, "worst_gaps")
    assert sarathi.verdict == "direction"
    assert (slai.verdict, slai.ours) == ("no", "0.110 / 0.500 s")


@pytest.mark.parametrize(("last_s", "holds"), [(0.3, True), (0.2, False)])
def test_the_curve_of_slai_has_to_rise_fall_and_rise(last_s, holds, experiment, rows_of):
    slai = dict(zip(RATES, (0.1, 0.4, 0.35, 0.3, 0.25, last_s), strict=True))

    def run(system, *, rate, paying, seed):
        return {"tbt_p99_free_s": slai[rate] if system == "SLAI" else rate}

    experiment.run = run
    assert (rows_of(experiment, "gap_curves")[0].verdict == "direction") is holds


def test_without_the_trace_lengths_have_its_quantiles(monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    lengths = trace_lengths()
    assert np.median(lengths.prompt_tokens) == pytest.approx(1730, rel=0.1)
    assert np.quantile(lengths.output_tokens, 0.9) == pytest.approx(834, rel=0.1)
    assert (lengths.prompt_tokens + lengths.output_tokens).max() <= 8192


def test_a_capacity_that_a_short_run_does_not_find_is_no_gain(experiment, rows_of):
    metric = "capacity at median TTFT <= 0.5 s and P99 TBT within target"
    experiment.capacity = lambda system, paying: 1.26 if system == "SLAI" else 1.0
    assert rows_of(experiment, metric)[0].ours == "1.00 -> 1.26 req/s (+26%)"
    experiment.capacity = lambda system, paying: 1.2 if system == "SLAI" else 0.0
    assert all(row.verdict == "no" for row in rows_of(experiment, metric))
