"""Reports are one file that needs nothing else, and appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scheduler_adapters.policy import POLICIES
from scheduler_adapters.reporting import report
from scoring_service.errors import ConfigError

LATENCIES = {"fcfs": [3.0, 1.0, 2.0], "pars": [1.0, 1.0], "somebody-else": [0.5]}


def a_page(path: Path) -> str:
    section = report.Section(
        heading="Latency <of> requests",
        text="First paragraph.\n\nSecond paragraph.",
        table=report.Table(columns=["policy", "mean"], rows=[["fcfs", 1234.5], ["pars", None]]),
        figure=report.ecdf_figure(report.ecdf_table({"simulator": LATENCIES}), "E2E latency (s)"),
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


def test_every_named_policy_has_a_colour_of_its_own() -> None:
    colours = report.colours_of(sorted(POLICIES))
    assert len({colours[name] for name in POLICIES}) == len(POLICIES)


def test_the_share_is_that_of_all_values_and_those_that_never_happened_count() -> None:
    table = report.ecdf_table({"": {"fcfs": [2.0, np.nan, 1.0, 4.0]}})
    assert table["value"].tolist() == [1, 2, 4]
    assert table["share"].tolist() == [0.25, 0.5, 0.75]


def test_values_with_counts_are_as_good_as_repeated_ones() -> None:
    weighted = report.ecdf_table({"": {"p": ([3.0, 1.0], [1, 3])}})
    assert weighted["share"].tolist() == [0.75, 1.0]


def test_many_values_are_thinned_and_the_curve_stays(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random(50_000)
    table = report.ecdf_table({"": {"p": values}})
    assert len(table) <= 401
    assert table["share"].iloc[-1] == pytest.approx(1.0)
    np.testing.assert_allclose(table["value"], table["share"], atol=0.02)


def test_bars_are_as_long_as_their_means() -> None:
    table = pd.DataFrame(
        {"policy": ["fcfs", "pars"], "mean": [2.0, 3.0], "low": [1.5, 2.9], "high": [2.5, 3.1]}
    )
    axis = report.capacity_figure(table, "requests/s").axes[0]
    assert [bar.get_width() for bar in axis.patches] == [2.0, 3.0]


def test_the_load_figure_stacks_memory_running_and_waiting() -> None:
    table = pd.DataFrame(
        {
            "policy": ["fcfs", "fcfs"],
            "at_s": [0.5, 1.5],
            "kv_usage_fraction": [0.1, 0.9],
            "num_resident": [1, 2],
            "num_waiting": [0, 7],
        }
    )
    lines = [axis.lines[0].get_ydata() for axis in report.load_figure(table).axes]
    assert [list(line) for line in lines] == [[0.1, 0.9], [1, 2], [0, 7]]


def test_a_point_lies_at_the_mean_and_its_bar_spans_the_runs() -> None:
    table = pd.DataFrame(
        {"measured_s": [2.0], "lowest_s": [1.0], "highest_s": [2.5], "simulated_s": [2.2]}
    )
    (axis,) = report.agreement_figure(table, "TTFT").axes
    points, _, (bars,) = axis.containers[0]
    assert points.get_xydata().tolist() == [[2.0, 2.2]]
    assert bars.get_segments()[0].tolist() == [[1.0, 2.2], [2.5, 2.2]]
    assert axis.get_xlabel() == "TTFT measured, mean and range (s)"


def test_single_runs_of_several_policies_have_a_colour_each_and_no_bars() -> None:
    table = pd.DataFrame(
        {"policy": ["fcfs", "pars"], "measured_s": [2.0, 1.0], "simulated_s": [2.2, 1.1]}
    )
    (axis,) = report.agreement_figure(table, "E2E").axes
    names = {box.get_label(): box.lines[0].get_color() for box in axis.containers}
    assert names == {name: report.COLOURS[name] for name in ("fcfs", "pars")}
    assert all(not box.has_xerr for box in axis.containers)
    assert axis.get_xlabel() == "E2E measured (s)"
