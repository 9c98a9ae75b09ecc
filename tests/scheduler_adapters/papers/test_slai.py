"""SLAI: points of a run, the shares of its users, and the criteria on them."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_adapters.commands.reproduce import ReproduceConfig
from scheduler_adapters.papers.slai import (
    RATES,
    TBT_S,
    Point,
    SlaiExperiment,
    _change,
    _gain,
    _held_row,
    _is_rising,
    _lengths,
)
from scheduler_adapters.workload.data_folder import ENVIRONMENT

GOOD = Point(0.4, 0.5, 0.4, TBT_S["paying"], TBT_S["free"])


@pytest.mark.parametrize("field", [0, 3, 4])
def test_a_point_meets_the_targets_up_to_their_edge_and_no_further(field):
    assert GOOD.meets_slo
    worse = list(vars(GOOD).values())
    worse[field] += 0.2
    assert not Point(*worse).meets_slo


def test_targets_are_held_by_the_worst_point():
    assert _held_row("SLAI", [GOOD, GOOD]).reproduced
    late = Point(0.4, 0.5, 0.4, 0.11, 0.5)
    row = _held_row("SLAI", [GOOD, late])
    assert (row.reproduced, row.ours) == (False, "0.110 / 0.500 s")


def test_equal_values_rise():
    assert _is_rising([1.0, 1.0, 2.0])
    assert not _is_rising([1.0, 2.0, 1.9])


def test_without_the_trace_lengths_have_its_quantiles(monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    lengths = _lengths()
    assert np.median(lengths.prompt_tokens) == pytest.approx(1730, rel=0.1)
    assert np.quantile(lengths.output_tokens, 0.9) == pytest.approx(834, rel=0.1)
    assert (lengths.prompt_tokens + lengths.output_tokens).max() <= 8192


def test_a_capacity_that_a_short_run_does_not_find_is_no_gain():
    assert _gain(1.0, 1.26) == pytest.approx(0.26)
    assert np.isnan(_gain(0.0, 1.2))
    assert _change(0.0, 1.2, unit="req/s") == "0.00 -> 1.20 req/s"


def test_a_point_is_the_mean_over_the_seeds_and_the_queue_grows_with_the_rate():
    experiment = SlaiExperiment(ReproduceConfig(paper="slai", seeds=2, scale=0.02))
    one, two = (experiment.measure("SLAI", 1.0, 0.5, seed) for seed in (0, 1))
    point = experiment.point("SLAI", 1.0, 0.5)
    assert point.mean_ttft_s == pytest.approx((one.mean_ttft_s + two.mean_ttft_s) / 2)
    calm, busy = (experiment.point("Sarathi FCFS", rate, 0.5).mean_ttft_s for rate in (0.4, 40.0))
    assert calm < busy
    assert tuple(sorted(RATES)) == RATES
