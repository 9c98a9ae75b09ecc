"""`reproduce`: refused settings, seeds of a paper, and rows measured, judged and reported."""

from __future__ import annotations

import json

import pytest

from scheduler_adapters.__main__ import main
from scheduler_adapters.commands.reproduce import (
    PAPERS,
    PaperFigure,
    ReproduceConfig,
    write_page,
)


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_a_small_run_gives_every_row_and_a_page(paper, tmp_path, capsys):
    scale = 0.005 if paper == "phasor" else 0.1
    options = [f"--scale={scale}", "--seeds=1", f"--out={tmp_path}", "--json"]
    assert main(["reproduce", paper, *options]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["paper"] == paper
    assert result["total"] == len(result["rows"]) > 10
    assert result["reproduced"] == sum(row["reproduced"] for row in result["rows"])
    assert result["reproduced"] > 0
    assert all(row["paper"] and row["ours"] and row["criterion"] for row in result["rows"])
    assert (tmp_path / "report.html").exists()


def test_a_page_counts_the_rows_and_shows_each_with_its_conditions(tmp_path):
    made, missed = (
        PaperFigure(
            metric=f"metric {verdict}",
            workload="w",
            paper="2x",
            ours="1x",
            reproduced=verdict,
            criterion="2x or more",
            pre_set=False,
        )
        for verdict in (True, False)
    )
    config = ReproduceConfig(paper="rad", out=tmp_path)
    page = write_page(config, "Conditions <1>.", [made, missed])
    assert page == tmp_path / "report.html"
    text = page.read_text()
    for said in ("1 of 2 rows", "metric False", "settled with figures at hand", "&lt;1&gt;", "RAD"):
        assert said in text


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["slai", "--scored=trace.csv"], "scored is trace.csv, which slai does not read"),
        (["pars", "--scores=bundle:run/bundle"], "add --scored FILE"),
        (["pascal", "--model=llama-3-8b"], "which pascal does not read; use it with phasor"),
        (["phasor", "--model=gpt-2"], "use one of qwen2.5-7b, llama-3-8b"),
    ],
)
def test_scores_that_nothing_would_read_are_refused(arguments, complaint, capsys):
    assert main(["reproduce", *arguments]) == 2
    assert complaint in capsys.readouterr().err


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


def test_quick_papers_have_more_seeds_unless_a_number_is_given():
    assert [ReproduceConfig(paper=name).num_seeds for name in ("pars", "slai", "rad")] == [5, 2, 2]
    assert ReproduceConfig(paper="pascal").num_seeds == 5
    assert ReproduceConfig(paper="phasor").num_seeds == 5
    assert ReproduceConfig(paper="pars", seeds=1).num_seeds == 1


def test_a_figure_says_when_its_criterion_was_settled():
    figure = PaperFigure(
        metric="m", workload="w", paper="2x", ours="2.1x", reproduced=True, criterion="2x or more"
    )
    assert (figure.baseline, figure.settled) == ("FCFS", "set beforehand")
