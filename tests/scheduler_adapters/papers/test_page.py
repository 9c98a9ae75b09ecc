"""The report of a paper: a table of its rows, and sections with figures."""

from __future__ import annotations

import pandas as pd

from scheduler_adapters.papers.page import (
    bars_section,
    instances_section,
    lines_section,
    write_page,
)
from scheduler_adapters.papers.rows import row
from scheduler_adapters.papers.runs import ReproduceConfig


def test_a_page_counts_the_rows_and_shows_each_with_its_conditions(tmp_path):
    made, missed = (
        row(f"metric {verdict} | w | FCFS", "2x", "1x", verdict, "2x or more", pre_set=False)
        for verdict in (True, False)
    )
    spans = [(0, "prefill", 0.0, 2.0), (1, "decode", 0.0, 2.0)]
    sections = [
        lines_section("Lines", [("", "FCFS", 1.0, 2.0)], ("x", "y"), "One seed.", "lines"),
        bars_section("Bars", {"FCFS": [1.0, 2.0]}, "seconds", "Two seeds.", "bars"),
        instances_section("Roles", spans, [(0, 1, 1.0, "live")], "Both.", "roles"),
        instances_section(
            "Moves", spans, [(0, 1, 1.0, "live")], "One.", "moves", writes_moves=True
        ),
    ]
    config = ReproduceConfig(paper="rad", out=tmp_path)
    page = write_page(config, "Conditions <1>.", [made, missed], sections)
    assert page == tmp_path / "report.html"
    text = page.read_text()
    for said in ("1 of 2 rows", "metric False", "settled with figures at hand", "&lt;1&gt;", "RAD"):
        assert said in text
    assert pd.read_csv(tmp_path / "lines.csv")["y"].tolist() == [2.0]
    assert pd.read_csv(tmp_path / "bars.csv")["mean"].tolist() == [1.5]
    assert pd.read_csv(tmp_path / "roles.csv")["role"].tolist() == ["prefill", "decode"]
    assert pd.read_csv(tmp_path / "moves.csv")["kind"].tolist() == ["live"]
