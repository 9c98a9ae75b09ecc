"""The report of a paper: a table of its rows."""

from scheduler_adapters.papers.page import write_page
from scheduler_adapters.papers.rows import PaperFigure
from scheduler_adapters.papers.runs import ReproduceConfig


def test_a_page_counts_the_rows_and_shows_each_with_its_conditions(tmp_path):
    made, missed = (
        PaperFigure(f"metric {verdict}", "w", "FCFS", "2x", "1x", verdict, "2x or more", False, "")
        for verdict in (True, False)
    )
    config = ReproduceConfig(paper="rad", out=tmp_path)
    page = write_page(config, "Conditions <1>.", [made, missed])
    assert page == tmp_path / "report.html"
    text = page.read_text()
    for said in ("1 of 2 rows", "metric False", "settled with figures at hand", "&lt;1&gt;", "RAD"):
        assert said in text
