"""Reports are one file that needs nothing else, and appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler_adapters.experiments import report
from scoring_service.errors import ConfigError

LATENCIES = {"fcfs": [3.0, 1.0, 2.0], "pars": [1.0, 1.0], "somebody-else": [0.5]}


def a_page(path: Path) -> str:
    section = report.Section(
        heading="Latency <of> requests",
        text="First paragraph.\n\nSecond paragraph.",
        table=report.Table(columns=["policy", "mean"], rows=[["fcfs", 1234.5], ["pars", None]]),
        figure=report.ecdf_figure({"simulator": LATENCIES}, "E2E latency (s)"),
        caption="three requests",
    )
    report.write_html(path, title="A title", lead="A lead", sections=[section])
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


def test_a_policy_keeps_its_colour() -> None:
    assert report.colours_of(["pars", "slai"])["pars"] == report.colours_of(["pars"])["pars"]
    assert len({report.colours_of(["x", "y", "fcfs"])[name] for name in ("x", "y", "fcfs")}) == 3


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(ConfigError, match=r"report\.html"):
        report.write_html(blocked / "report.html", title="t", lead="l", sections=[])
    assert list(tmp_path.iterdir()) == [blocked]
