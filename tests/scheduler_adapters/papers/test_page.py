"""The report of a paper: a table of its rows, and sections with figures."""

import pandas as pd

from scheduler_adapters.papers.page import section_of, write_page
from scheduler_adapters.papers.rows import Figure, PaperFigure
from scheduler_adapters.papers.runs import ReproduceConfig


def test_a_page_counts_the_rows_and_shows_each_with_its_conditions(tmp_path):
    made, missed = (
        PaperFigure(f"metric {verdict}", "w", "FCFS", "2x", "1x", verdict, "2x or more", False, "")
        for verdict in (True, False)
    )
    found = {
        "points": [("", "FCFS", 1.0, 2.0)],
        "bars": {"FCFS": [1.0, 2.0]},
        "rows": [["FCFS", 2.5]],
        "said": "two seeds",
    }
    figures = [
        Figure(measure="m", kind=kind, heading=kind, caption="{said}.", axes=axes, file=kind)
        for kind, axes in (
            ("lines", ("x", "y")),
            ("bars", ("seconds",)),
        )
    ]
    figures.append(Figure(measure="m", heading="Table", columns=("system", "s")))
    sections = [section_of(figure, found) for figure in figures]
    config = ReproduceConfig(paper="rad", out=tmp_path)
    page = write_page(config, "Conditions <1>.", [made, missed], sections)
    assert page == tmp_path / "report.html"
    text = page.read_text()
    for said in (
        "1 of 2 rows",
        "metric False",
        "settled with figures at hand",
        "&lt;1&gt;",
        "RAD",
        "two seeds.",
    ):
        assert said in text
    assert pd.read_csv(tmp_path / "lines.csv")["y"].tolist() == [2.0]
    assert pd.read_csv(tmp_path / "bars.csv")["mean"].tolist() == [1.5]
