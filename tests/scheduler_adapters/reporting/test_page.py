"""Reports appear whole or not at all, their figures and tables beside them."""

from pathlib import Path

import pandas as pd
import pytest

from lengthwise.errors import DataError
from scheduler_adapters.reporting.figures import ecdf_figure
from scheduler_adapters.reporting.latency_tables import ecdf_table
from scheduler_adapters.reporting.page import Section, write_html, write_report

LATENCIES = {"fcfs": [3.0, 1.0, 2.0], "pars": [1.0, 1.0], "somebody-else": [0.5]}


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
