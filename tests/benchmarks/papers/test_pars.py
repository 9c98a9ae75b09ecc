"""PARS: drawn lengths, better orders, a trained ranker, and loads without a queue."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.papers.pars import TRAINED, ParsExperiment
from benchmarks.papers.runs import ReproduceConfig
from lengthwise.errors import DataError
from scheduler_adapters.workload.data_folder import ENVIRONMENT

SMALL = ReproduceConfig(paper="pars", seeds=1, scale=0.2)


def test_recorded_lengths_are_drawn_and_without_them_a_curve(tmp_path, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    random = np.random.default_rng(0)
    lengths = ParsExperiment(SMALL).lengths["short outputs"]
    assert np.median(lengths.draw(5000, random)) == pytest.approx(160, rel=0.1)
    folder = tmp_path / "alpaca-vicuna7b"
    folder.mkdir()
    table = pd.DataFrame({"vicuna_tokens_t0_7": [0, 7, 99_999]})
    table.to_parquet(folder / "alpaca_vicuna7b_lengths.parquet")
    assert {*lengths.draw(50, random)} == {7, 16_384}  # aborted ones dropped, others cut


def test_a_better_order_is_served_sooner():
    experiment = ParsExperiment(SMALL)
    fcfs, pars, oracle = (
        experiment.mean("normalized_latency_s.mean", system, lengths="short outputs", seats=64)
        for system in ("FCFS", "PARS", "Oracle")
    )
    assert oracle < pars < fcfs
    burst = experiment.burst("short outputs", ["normalized_latency_s.mean"], seats=64)
    assert burst["value"][0] == pytest.approx(fcfs / pars)


def test_static_batches_are_slower_than_continuous_and_in_order():
    experiment = ParsExperiment(SMALL)
    setting = {"lengths": "short outputs", "seats": 64}
    found = experiment.in_order("e2e_s.mean", ("Oracle", "PARS", "FCFS"), batch=64, **setting)
    assert (found["value"] < 1).all()
    assert found["means"][1] > experiment.mean("e2e_s.mean", "PARS", **setting)


def test_a_trace_scored_by_a_trained_ranker_gets_rows_of_its_own(tmp_path, rows_of):
    random = np.random.default_rng(0)
    output = random.integers(1, 400, 300)
    table = pd.DataFrame({"prompt_tokens": 20, "output_tokens": output})
    path = tmp_path / "scored.parquet"
    table.assign(score=output + random.normal(0, 50, 300)).to_parquet(path)

    config = ReproduceConfig(paper="pars", seeds=1, scale=0.1, scored=path)
    experiment = ParsExperiment(config)
    order = experiment.order(TRAINED)
    assert order["holds"]
    assert 0 < order["value"] < 200
    assert rows_of(experiment, "burst")[-1].workload.endswith("300 prompts")

    table.assign(score=np.nan).to_parquet(path)
    with pytest.raises(DataError, match="bundle:PATH"):
        ParsExperiment(config).words(lengths=TRAINED)


def test_an_order_needs_a_queue(rows_of):
    experiment = ParsExperiment(ReproduceConfig(paper="pars", seeds=2, scale=0.1))

    def rows_at(saturation_per_s: float):
        experiment.saturation_per_s = lambda lengths: saturation_per_s
        experiment.known.found.clear()
        return rows_of(experiment, "order")

    calm, busy = rows_at(2.0)[1], rows_at(500.0)[1]
    assert calm.verdict == "no"  # there is no queue to put in order
    assert "step may take" in busy.note
    assert busy.verdict == "direction"
