"""Reports are one file that needs nothing else, and appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from scheduler_adapters.reporting.figures import ecdf_figure
from scheduler_adapters.reporting.page import ReportTable, Section, write_html, write_report
from scheduler_adapters.reporting.tables import ecdf_table
from scoring_service.errors import DataError

LATENCIES = {"fcfs": [3.0, 1.0, 2.0], "pars": [1.0, 1.0], "somebody-else": [0.5]}


def a_page(path: Path) -> str:
    section = Section(
        heading="Latency <of> requests",
        text="First paragraph.\n\nSecond paragraph.",
        table=ReportTable(columns=["policy", "mean"], rows=[["fcfs", 1234.5], ["pars", None]]),
        figure=ecdf_figure(ecdf_table({"simulator": LATENCIES}), "E2E latency (s)"),
        caption="three requests",
    )
    write_html(path, title="A title", lead="A lead", sections=[section])
    return path.read_text()


def test_a_report_needs_no_other_file(tmp_path: Path) -> None:
    page = a_page(tmp_path / "report.html")
    assert "<svg" in page
    assert "viewport" in page
    for outside in ("<script", "<link", "<img", 'src="http'):
        assert outside not in page


def test_text_is_escaped_and_numbers_are_readable(tmp_path: Path) -> None:
    page = a_page(tmp_path / "report.html")
    assert "Latency &lt;of&gt; requests" in page
    assert "<td>1,234</td>" in page
    assert "<td>-</td>" in page


def test_the_same_figures_give_the_same_bytes(tmp_path: Path) -> None:
    assert a_page(tmp_path / "a.html") == a_page(tmp_path / "b.html")


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(DataError, match=r"report\.html"):
        write_html(blocked / "report.html", title="t", lead="l", sections=[])
    assert list(tmp_path.iterdir()) == [blocked]


def test_a_figure_that_was_drawn_from_a_table_lies_beside_it(tmp_path: Path) -> None:
    table = ecdf_table({"": LATENCIES})
    drawn = Section(heading="a", figure=ecdf_figure(table, "s"), drawn=("latency", table))
    plain = Section(heading="b", figure=ecdf_figure(table, "s"))
    files = write_report(tmp_path / "new", title="t", lead="l", sections=[drawn, plain])
    assert [file.name for file in files] == ["report.html", "latency.csv", "latency.svg"]
    assert {*files} == {*(tmp_path / "new").iterdir()}
    assert pd.read_csv(files[1])["value"].tolist() == table["value"].tolist()
