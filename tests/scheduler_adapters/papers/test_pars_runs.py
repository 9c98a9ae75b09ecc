"""Runs of the PARS figures: drawn lengths, scores of each system, saturation."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_adapters.commands.reproduce import ReproduceConfig
from scheduler_adapters.papers.pars_runs import (
    LONG_MODEL,
    SHORT,
    SHORT_MODEL,
    WORKLOADS,
    ParsExperiment,
)
from scheduler_adapters.workload.data_folder import ENVIRONMENT

SMALL = ReproduceConfig(paper="pars", seeds=1, scale=0.2)


def test_with_the_kv_memory_of_two_gpus_a_burst_of_long_answers_is_served_sooner():
    one, two = (ParsExperiment(SMALL, num_gpus=gpus).latency(LONG_MODEL, "FCFS") for gpus in (1, 2))
    assert two < one


def test_recorded_lengths_are_drawn_and_without_them_a_curve(tmp_path, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    random = np.random.default_rng(0)
    drawn = WORKLOADS[SHORT].draw(5000, random)
    assert np.median(drawn) == pytest.approx(160, rel=0.1)
    folder = tmp_path / "alpaca-vicuna7b"
    folder.mkdir()
    import pandas as pd

    table = pd.DataFrame({"vicuna_tokens_t0_7": [0, 7, 99_999]})
    table.to_parquet(folder / "alpaca_vicuna7b_lengths.parquet")
    assert {*WORKLOADS[SHORT].draw(50, random)} == {7, 16_384}  # aborted ones dropped, others cut


def test_a_better_order_is_served_sooner_and_a_run_is_made_once():
    experiment = ParsExperiment(SMALL)
    fcfs, pars, oracle = (
        experiment.latency(SHORT_MODEL, system, seats=64)[0]
        for system in ("FCFS", "PARS", "Oracle")
    )
    assert oracle < pars < fcfs
    assert (
        experiment.runs(SHORT_MODEL, "PARS", seats=64)[0]
        is (experiment.runs(SHORT_MODEL, "PARS", seats=64)[0])
    )
