"""`reproduce`: every row is measured, judged by its band, and reported."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from scheduler_adapters.__main__ import main
from scheduler_adapters.commands.reproduce import pars as reproduce_pars
from scheduler_adapters.commands.reproduce.figure import PAPERS, PaperFigure, ReproduceConfig
from scheduler_adapters.commands.reproduce.pars import ParsExperiment
from scheduler_adapters.commands.reproduce.rad import (
    ABOVE,
    BELOW,
    CHATS,
    SHORT_CHATS,
    TileSetting,
    backlog,
    nobody_left,
)
from scheduler_adapters.timeline.timeline import timeline_from_token_times
from scheduler_adapters.workload.requests import make_requests
from scoring_service.errors import DataError


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_a_small_run_gives_every_row_and_a_page(paper, tmp_path, capsys):
    assert (
        main(["reproduce", paper, "--scale=0.1", "--seeds=1", f"--out={tmp_path}", "--json"]) == 0
    )
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["paper"] == paper
    assert result["total"] == len(result["rows"]) > 10
    assert result["reproduced"] == sum(row["reproduced"] for row in result["rows"])
    assert result["reproduced"] > 0
    assert all(row["paper"] and row["ours"] and row["criterion"] for row in result["rows"])
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["slai", "--scored=trace.csv"], "scored is trace.csv, which slai does not read"),
        (["pars", "--scores=bundle:run/bundle"], "add --scored FILE"),
    ],
)
def test_scores_that_nothing_would_read_are_refused(arguments, complaint, capsys):
    assert main(["reproduce", *arguments]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.slow
def test_the_backlog_of_every_scheduler_grows_above_the_bound():
    setting = TileSetting(CHATS, cycle=1024)
    requests = setting.requests(ABOVE, 2000)
    last_s = requests.arrival_s[-1]
    for system in setting.policies():
        half, end = backlog(setting.run(system, requests), np.array([last_s / 2, last_s]))
        assert end > half > 0, system


def times_empty(setting: TileSetting, *, start: int, count: int) -> int:
    requests = setting.requests(BELOW, count, backlog=start)
    timeline = setting.run("RAD", requests)
    return len(nobody_left(requests.arrival_s, timeline.finished_s)[0])


@pytest.mark.slow
def test_rad_empties_below_the_bound_if_a_cycle_starts_enough_requests():
    enough = TileSetting(SHORT_CHATS, tile=8)
    assert enough.cycle > enough.least_cycle
    assert times_empty(enough, start=200, count=2000) > 10
    too_few = TileSetting(SHORT_CHATS, tile=8, cycle=8)
    assert times_empty(too_few, start=200, count=2000) == 0


def test_nobody_is_left_only_between_the_last_departure_and_the_next_arrival():
    arrival_s = np.array([0.0, 0.0, 5.0, 6.0])
    left_s = np.array([3.0, 2.0, 7.0, 6.5])
    at_s, idle_s = nobody_left(arrival_s, left_s)
    assert (at_s.tolist(), idle_s.tolist()) == ([3.0], [2.0])


def test_no_scheduler_can_be_seen_empty_where_tiles_are_large_and_answers_long():
    assert TileSetting(CHATS, cycle=1024).empty_at_most() < 1e-8
    assert TileSetting(SHORT_CHATS, tile=8).empty_at_most() > 0.1


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
        workload = reproduce_pars.SHORT_MODEL
        return reproduce_pars._order_row(experiment, workload, workload, load, systems)

    calm, busy = order_row(0.2), order_row(50.0)
    assert calm.reproduced
    assert "nobody is left waiting" in calm.criterion
    assert "order holds" in busy.criterion


def test_with_the_kv_memory_of_two_gpus_a_burst_of_long_answers_is_served_sooner():
    config = ReproduceConfig(paper="pars", seeds=1, scale=0.2)
    one, two = (
        ParsExperiment(config, num_gpus=gpus).latency(reproduce_pars.LONG_MODEL, "FCFS")
        for gpus in (1, 2)
    )
    assert two < one


def test_the_backlog_counts_who_is_there():
    requests = make_requests(prompt_tokens=[1, 1], output_tokens=[1, 1], arrival_s=[0.0, 2.0])
    timeline = timeline_from_token_times(requests, [[1.0], [3.0]])
    at_s = np.array([0.5, 1.5, 2.5, 3.5])
    assert backlog(timeline, at_s).tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["orca"], "no paper named 'orca'; use one of pars"),
        (["pars", "--scale=2"], "scale is 2"),
        (["pars", "--seeds=0"], "seeds is 0"),
    ],
)
def test_bad_input_is_one_line(arguments, complaint, capsys):
    assert main(["reproduce", *arguments]) == 2
    assert complaint in capsys.readouterr().err
