"""Figures of tables, as SVG. The only module here that imports a plotting library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from lengthwise.report_page import FIGURE_STYLE

COLOURS: Final = {
    "fcfs": "#8c8c8c",
    "pars": "#0b62a4",
    "oracle": "#2e8b57",
    "pointwise": "#56a8dd",
    "listwise": "#7b8fd4",
    "sarathi": "#b8860b",
    "vllm-prefill-first": "#d95f8d",
    "orca": "#a0522d",
    "request-level": "#4d4d4d",
    "slai": "#c2571a",
    "rad": "#7d4fa3",
    "rad-twin": "#b48bd0",
    "round-robin": "#5b6f2a",
    "pascal": "#a0304e",
    "shortest-prompt": "#1a9850",
    "residual-prompt": "#66bd63",
    "uniboost": "#d6a419",
    "uniboost-learned": "#f46d43",
    "srpt": "#5e3c99",
    "virtual-token-counter": "#35978f",
}
"""Colours of policies in all figures; other policies take the next of `_CYCLE`."""

_CYCLE: Final = ("#0f8b8d", "#e0a030", "#6a3d3d", "#3f4a8a", "#97b83c", "#c060c0")
_DASHES: Final = ((), (5, 1.6), (1.2, 1.4), (6, 1.5, 1.2, 1.5), (9, 2), (3, 1, 1, 1, 1, 1))
_MARKERS: Final = "os^Dv*"
"""Dashes or markers of the lines of a figure, for readers without colour vision."""


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each name: its own where it has one, else the next of the cycle."""
    others = dict.fromkeys(name for name in names if name not in COLOURS)
    return {**COLOURS, **{n: _CYCLE[i % len(_CYCLE)] for i, n in enumerate(others)}}


def _panels(
    table: pd.DataFrame,
    draw: Callable[[Axes, pd.DataFrame, dict[str, Any]], object],
    *,
    by: str = "panel",
    legend: Literal["lower right", "upper right", "upper left"] = "upper left",
    marked: bool = False,
    **axes: Any,
) -> list[Figure]:
    """Return a figure for each value of column `by`; a wide page has them side by side.

    Args:
        draw: adds the rows of one policy to the axes, by their colour, label, and dashes or marker.
        legend: place of the legend.
        marked: markers in place of dashes.
        axes: labels, limits and scales.
    """
    colours, looks = colours_of(table["policy"]), {}
    for number, name in enumerate(table["policy"].unique()):
        dashes = {"dashes": _DASHES[number % len(_DASHES)]}
        markers = {"marker": _MARKERS[number % len(_MARKERS)], "markersize": 4}
        looks[name] = {"color": colours[name], "label": name, **(markers if marked else dashes)}
    found = []
    for title in table[by].unique():
        with _canvas(4.6, 3.4) as (figure, axis):
            for name, rows in table[table[by] == title].groupby("policy", sort=False):
                draw(axis, rows, looks[name])
            axis.set(title=title, **axes)
            axis.legend(loc=legend)
            found.append(figure)
    return found


@contextmanager
def _canvas(width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """Yield a figure of this size in inches, in our style, and its axes."""
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots()


def ecdf_figure(table: pd.DataFrame, xlabel: str, *, log_x: bool = False) -> list[Figure]:
    """Cumulative share against a latency: a figure for each `panel` of `ecdf_table`."""

    def draw(axis: Axes, rows: pd.DataFrame, look: dict[str, Any]) -> None:
        axis.step(rows["value"], rows["share"], where="post", linewidth=1.8, **look)

    axes: dict[str, Any] = {"xlabel": xlabel, "ylabel": "share", "ylim": (0, 1.01)}
    scale: dict[str, Any] = {"xscale": "log"} if log_x else {"xlim": (0, None)}
    return _panels(table, draw, legend="lower right", **axes, **scale)


def waiting_figure(table: pd.DataFrame) -> list[Figure]:
    """Requests as lines in the order of their end: thin in the queue, thick while running.

    Columns policy, scheduled_s, finished_s, is_long; all arrive at 0 s.
    """

    def draw(axis: Axes, rows: pd.DataFrame, look: dict[str, Any]) -> None:
        rows = rows.sort_values("finished_s", ignore_index=True)
        axis.hlines(rows.index, 0, rows["scheduled_s"], color="#b0b0b0", linewidth=0.8)
        kinds = {"short answer": COLOURS["pars"], "long answer": _CYCLE[1]}
        for is_long, (name, color) in enumerate(kinds.items()):
            some = rows[rows["is_long"] == bool(is_long)]
            line: dict[str, Any] = {"color": color, "linewidth": 3.2, "label": name}
            axis.hlines(some.index, some["scheduled_s"], some["finished_s"], **line)
        axis.invert_yaxis()

    span_s = (0, float(table["finished_s"].max()))
    return _panels(
        table, draw, by="policy", legend="upper right", xlabel="seconds", yticks=[], xlim=span_s
    )


def rate_figure(table: pd.DataFrame) -> list[Figure]:
    """Latency against the arrival rate: columns metric, policy, rate_per_s, p50, p99 (seconds)."""

    def draw(axis: Axes, rows: pd.DataFrame, look: dict[str, Any]) -> None:
        axis.plot(rows["rate_per_s"], rows["p50"], **{**look, "label": "_"})
        axis.plot(rows["rate_per_s"], rows["p99"], **look, ls="--")

    axes: dict[str, Any] = {"xlabel": "requests per second", "ylabel": "seconds"}
    return _panels(table, draw, by="metric", yscale="log", marked=True, **axes)


def band_figure(table: pd.DataFrame, xlabel: str) -> list[Figure]:
    """Lines with their 95% bands: columns panel, policy, x, value, low, high (seconds)."""

    def draw(axis: Axes, rows: pd.DataFrame, look: dict[str, Any]) -> None:
        axis.plot(rows["x"], rows["value"], **look)
        axis.fill_between(rows["x"], rows["low"], rows["high"], color=look["color"], alpha=0.15)

    return _panels(table, draw, yscale="log", marked=True, xlabel=xlabel, ylabel="seconds")


def load_figure(table: pd.DataFrame) -> list[Figure]:
    """KV use, running and waiting requests over virtual time.

    Columns policy, at_s, kv_usage_fraction, num_resident, num_waiting.
    """
    columns = {
        "kv_usage_fraction": "KV blocks in use",
        "num_resident": "requests running",
        "num_waiting": "requests waiting",
    }

    def draw(axis: Axes, rows: pd.DataFrame, look: dict[str, Any]) -> None:
        axis.plot(rows["at_s"], rows["value"], linewidth=1.4, alpha=0.9, **look)
        if (rows["panel"] == columns["kv_usage_fraction"]).any():
            axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))

    long = table.rename(columns=columns).melt(["policy", "at_s"], [*columns.values()], "panel")
    limits: dict[str, Any] = {"xlim": (0, table["at_s"].max()), "ylim": (0, None)}
    return _panels(long, draw, legend="upper right", xlabel="virtual time (s)", **limits)


def capacity_figure(table: pd.DataFrame, xlabel: str) -> Figure:
    """Bars with their 95% intervals: columns policy, mean, low, high."""
    colours = table["policy"].map(colours_of(table["policy"])).tolist()
    with _canvas(5.6, 0.8 + 0.42 * len(table)) as (figure, axis):
        spread = np.abs(table[["low", "high"]].to_numpy() - table[["mean"]].to_numpy()).T.tolist()
        bars = axis.barh(table["policy"], table["mean"], xerr=spread, color=colours, height=0.6)
        axis.bar_label(bars, fmt="%.3g", padding=6)
        axis.margins(x=0.12)
        axis.set(xlabel=xlabel)
        axis.grid(visible=False, axis="y")
        axis.invert_yaxis()
        return figure
