"""`reproduce`: refused settings, seeds of a paper, and rows measured, judged and reported."""

import json
import re

import pytest

from benchmarks.__main__ import main
from benchmarks.papers.reproduce import write_page
from benchmarks.papers.rows import VERDICTS, Paper, PaperFigure
from benchmarks.papers.runs import PAPERS, ReproduceConfig


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_a_small_run_gives_every_row_and_a_page(paper, tmp_path, capsys):
    scale = 0.005 if paper == "phasor" else 0.1
    options = [f"--scale={scale}", "--seeds=1", f"--out={tmp_path}", "--json"]
    assert main(["reproduce", paper, *options]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["paper"] == paper
    verdicts = [row["verdict"] for row in result["rows"] if row["kind"] == "paper"]
    assert verdicts
    assert result["counts"]["paper"] == {one: verdicts.count(one) for one in VERDICTS}
    assert result["criteria"]
    assert all(row["paper"] and row["ours"] for row in result["rows"])
    assert all(row["criterion"] or row["band"] for row in result["rows"])
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["slai", "--scored=trace.csv"], "scored is trace.csv, which slai does not read"),
        (["pars", "--scores=bundle:run/bundle"], "add --scored FILE"),
        (["pascal", "--model=llama-3-8b"], "which pascal does not read; use it with phasor"),
        (["phasor", "--model=gpt-2"], "use one of qwen2.5-7b, llama-3-8b"),
        (["orca"], "no paper named 'orca'; use one of pars"),
        (["pars", "--scale=2"], "scale is 2"),
        (["pars", "--seeds=0"], "seeds is 0"),
    ],
)
def test_bad_input_is_one_line(arguments, complaint, capsys):
    assert main(["reproduce", *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_a_page_counts_the_rows_and_shows_each_with_conditions(tmp_path):
    rows = [
        PaperFigure("metric " + one, "w", "FCFS", "2x", "1x", one, "2x or more", "", kind, "", near)
        for one, kind, near in (
            ("figure", "paper", [(0.5, 0.4, 0.6)]),
            ("no", "paper", []),
            ("no", "fitted", []),
        )
    ]
    config = ReproduceConfig(paper="rad", out=tmp_path)
    page = write_page(config, Paper("Conditions <1>.", (), "commit abc"), rows)
    assert page == tmp_path / "report.html"
    text = page.read_text()
    headings = re.findall(r"<th[^>]*>(.*?)</th>", text)
    assert headings == ["figure", "verdict", "paper", "ours", "counts as", "note"]
    assert text.count("<figure>") == 1
    words = "paper 1 figure, 0 direction, 1 no, 0 open; fitted 0 figure, 0 direction, 1 no, 0 open."
    for said in (
        words,
        "metric no; w; against FCFS",
        "no (fitted)",
        "Criteria: commit abc",
        "&lt;1&gt;",
        "RAD",
    ):
        assert said in text
