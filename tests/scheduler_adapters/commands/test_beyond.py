"""`beyond`: variants are judged by paired intervals, on lengths that chose no setting."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from scheduler_adapters.__main__ import main
from scheduler_adapters.commands.beyond import (
    CHOOSING,
    FRACTIONS,
    REPORTING,
    BeyondConfig,
    Row,
    Workload,
    _calibration,
    _quantiles,
    _scored,
)
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.workload.data_folder import ENVIRONMENT

CONFIG = BeyondConfig(num_requests=1000)


def workload() -> Workload:
    lengths = np.arange(2, 4002)
    instance = Instance(latency=AffineLatency(base_s=0.01), kv_blocks=10_000)
    return Workload(
        name="all", prompt_tokens=np.full(4000, 9), output_tokens=lengths, instance=instance
    )


def test_lengths_that_choose_settings_are_not_reported():
    chosen = workload().requests(500, CHOOSING, 7).output_tokens
    reported = workload().requests(500, REPORTING, 7).output_tokens
    assert not set(chosen) & set(reported)


def test_quantiles_rise_with_the_score_and_cover_what_they_say():
    work = workload()
    _, lengths = _calibration(work, CONFIG)
    assert (np.diff(lengths, axis=1) >= 0).all()
    requests = _scored(work, CONFIG, REPORTING, 0)
    tokens = np.array([[t for _, t in row] for row in _quantiles(work, CONFIG, requests)])
    covered = (requests.output_tokens[:, None] <= tokens).mean(axis=0)
    np.testing.assert_allclose(covered, FRACTIONS, atol=0.05)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.2, -0.1, "wins"), (0.1, 0.2, "loses"), (-0.1, 0.1, "no difference")],
)
def test_a_verdict_needs_an_interval_without_zero(low, high, verdict):
    row = Row(
        variant="a",
        against="b",
        workload="w",
        metric="m",
        baseline_s=1.0,
        variant_s=1.0,
        oracle_s=1.0,
        change=(low + high) / 2,
        interval=(low, high),
        decides=True,
    )
    assert row.verdict == verdict


def test_a_single_seed_is_refused_for_it_has_no_interval(capsys):
    assert main(["beyond", "--seeds=1"]) == 2
    assert "seeds is 1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get(ENVIRONMENT), reason="needs the recorded lengths")
def test_a_small_run_judges_every_variant(capsys):
    assert main(["beyond", "--seeds=2", "--num-requests=100", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    variants = {row["variant"] for row in result["rows"]}
    assert set(result["verdicts"]) == set(result["settings"]) == variants
    assert {row["verdict"] for row in result["rows"]} <= {"wins", "loses", "no difference"}
