"""The report of a paper: a table of its rows."""

from benchmarks.papers.page import write_page
from benchmarks.papers.rows import Paper, PaperFigure
from benchmarks.papers.runs import ReproduceConfig


def test_a_page_counts_the_rows_and_shows_each_with_conditions(tmp_path):
    rows = [
        PaperFigure("metric " + one, "w", "FCFS", "2x", "1x", one, "2x or more", "", kind, "")
        for one, kind in (("figure", "paper"), ("no", "paper"), ("no", "fitted"))
    ]
    config = ReproduceConfig(paper="rad", out=tmp_path)
    page = write_page(config, Paper("Conditions <1>.", (), "commit abc"), rows)
    assert page == tmp_path / "report.html"
    text = page.read_text()
    words = "paper 1 figure, 0 direction, 1 no; fitted 0 figure, 0 direction, 1 no."
    for said in (words, "metric no", "Criteria: commit abc", "&lt;1&gt;", "RAD"):
        assert said in text
