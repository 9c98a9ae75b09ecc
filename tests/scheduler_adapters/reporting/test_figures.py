"""Figures: colours, bars, lines and points are those of the table."""

import pandas as pd

from scheduler_adapters.policy import POLICIES
from scheduler_adapters.reporting import figures


def test_policies_of_a_figure_have_colours_of_their_own():
    names = [*figures.COLOURS, "x", "y"]
    colours = figures.colours_of(names)
    assert len(set(colours.values())) == len(names)
    assert figures.colours_of(["orca", "pars"])["pars"] == colours["pars"]
    assert set(figures.colours_of(POLICIES)) == set(POLICIES)


def test_logarithmic_axes_have_few_plain_numbers():
    for low, high in ((0.9, 1.3), (0.02, 80.0), (1e-4, 1e4)):
        table = pd.DataFrame({"panel": "a", "policy": "x", "value": [low, high], "share": [0.5, 1]})
        (figure,) = figures.ecdf_figure(table, "s", log_x=True)
        figure.canvas.draw()
        texts = [text.get_text() for text in figure.axes[0].get_xticklabels()]
        assert 2 <= len(texts) <= 13
        assert [f"{float(text):g}" for text in texts] == texts


def test_bars_are_as_long_as_their_means():
    table = pd.DataFrame(
        {"policy": ["fcfs", "pars"], "mean": [2.0, 3.0], "low": [1.5, 2.9], "high": [2.5, 3.1]}
    )
    axis = figures.bar_figure(table, "requests/s").axes[0]
    assert [bar.get_width() for bar in axis.patches] == [2.0, 3.0]


def test_each_panel_has_its_lines_and_their_names():
    table = pd.DataFrame({"panel": ["a"] * 6 + ["b"], "policy": [*["x", "y", "z"] * 2, "x"]})
    table["x"], table["value"] = [0, 0, 0, 1, 1, 1, 3], [0.1, 0.1, 0.1, 10.0, 9.99, 1.0, 6.0]
    table["low"] = table["high"] = table["value"]
    first, second = (f.axes[0] for f in figures.band_figure(table, "load"))
    assert (len(first.lines), first.get_ylabel()) == (3, "seconds")
    assert second.lines[0].get_xydata().tolist() == [[3, 6]]
    (legend,) = first.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["x", "y", "z"]


def test_lines_differ_without_their_colours():
    table = pd.DataFrame({"panel": "a", "policy": list("uvwxyz"), "value": 1.0, "share": 1.0})
    (figure,) = figures.ecdf_figure(table, "s")
    lines = figure.axes[0].lines
    assert len({str(line._dash_pattern) for line in lines}) == len(lines) == 6
