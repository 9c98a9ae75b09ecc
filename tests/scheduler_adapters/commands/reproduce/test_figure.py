"""Figures of papers: settings that are refused, and the seeds of a paper."""

from __future__ import annotations

import pytest

from scheduler_adapters.__main__ import main
from scheduler_adapters.commands.reproduce.figure import PaperFigure, ReproduceConfig


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
    assert ReproduceConfig(paper="pars", seeds=1).num_seeds == 1


def test_a_figure_says_when_its_criterion_was_settled():
    figure = PaperFigure(
        metric="m", workload="w", paper="2x", ours="2.1x", reproduced=True, criterion="2x or more"
    )
    assert (figure.baseline, figure.settled) == ("FCFS", "set beforehand")
