"""`reproduce`: every row is measured, judged by its band, and reported."""

from __future__ import annotations

import json

import numpy as np
import pytest

from scheduler_adapters.__main__ import main
from scheduler_adapters.experiments.reproduce import PAPERS, ReproduceConfig
from scheduler_adapters.experiments.reproduce_rad import Experiment, backlog
from scheduler_adapters.experiments.timeline import timeline_from_token_times
from scheduler_adapters.experiments.workload import make_requests


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
    assert all(row["paper"] and row["ours"] and row["note"] for row in result["rows"])
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_the_backlog_of_every_scheduler_grows_above_the_bound():
    from scheduler_adapters.experiments.reproduce_rad import SYSTEMS, _slope_per_s

    experiment = Experiment(ReproduceConfig(paper="rad"))
    load = experiment.load(1.05)
    for system in SYSTEMS:
        assert _slope_per_s(experiment.run(system, load)) > 0, system


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
