"""PARS: the figures of a trained ranker, and of loads without a queue."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lengthwise.errors import DataError
from scheduler_adapters.commands.reproduce import PaperFigure, ReproduceConfig
from scheduler_adapters.papers import pars as reproduce_pars
from scheduler_adapters.papers.pars_runs import SHORT_MODEL, ParsExperiment


def test_a_trace_scored_by_a_trained_ranker_gets_rows_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce_pars, "_LOADS", (None,))
    random = np.random.default_rng(0)
    output = random.integers(1, 400, 300)
    table = pd.DataFrame({"prompt_tokens": 20, "output_tokens": output})
    path = tmp_path / "scored.parquet"
    table.assign(score=output + random.normal(0, 50, 300)).to_parquet(path)

    config = ReproduceConfig(paper="pars", seeds=1, scale=0.1, scored=path)
    rows = reproduce_pars.trained_rows(config)
    assert [row.reproduced for row in rows if "order" in row.metric] == [True]

    table.assign(score=np.nan).to_parquet(path)
    with pytest.raises(DataError, match="bundle:PATH"):
        reproduce_pars.trained_rows(config)


def test_where_nobody_is_left_waiting_no_order_is_asked_for():
    experiment = ParsExperiment(ReproduceConfig(paper="pars", seeds=2, scale=0.1))
    systems = ("Oracle", "PARS", "FCFS")

    def order_row(load: float) -> PaperFigure:
        workload = SHORT_MODEL
        return reproduce_pars._order_row(experiment, workload, workload, load, systems)

    calm, busy = order_row(0.2), order_row(50.0)
    assert calm.reproduced
    assert "nobody is left waiting" in calm.criterion
    assert "order holds" in busy.criterion
