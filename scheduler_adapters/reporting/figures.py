"""Figures of tables, as SVG. The only module here that imports a plotting library."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from lengthwise.report_page import FIGURE_STYLE

COLOURS: Final = {
    "fcfs": "#6e6e6e",
    "pars": "#0072b2",
    "oracle": "#009e73",
    "uniboost": "#e69f00",
    "uniboost-learned": "#d55e00",
    "srpt": "#cc79a7",
    "slai": "#56b4e9",
}
"""Colours of policies in all figures, from Okabe and Ito's, which colour-blind readers tell apart.
Other policies take those that a figure does not use; lines differ in dashes or markers, too."""

_PALETTE: Final = ("#000000", *COLOURS.values(), "#8a6d00", "#7b4ea3")
_DASHES: Final = ((), (5, 1.6), (1.2, 1.4), (6, 1.5, 1.2, 1.5), (9, 2), (3, 1, 1, 1, 1, 1))
_MARKERS: Final = "os^Dv*"
"""Dashes or markers of the lines of a figure, for readers without colour vision."""
_WIDE: Final = 30
"""Ratio of the values of a panel from which on their axis is logarithmic."""


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each name: its own where it has one, else one that is left."""
    found = {name: COLOURS[name] for name in names if name in COLOURS}
    free = [colour for colour in _PALETTE if colour not in found.values()]
    others = [name for name in dict.fromkeys(names) if name not in COLOURS]
    return found | {name: free[number % len(free)] for number, name in enumerate(others)}


def _panels(
    table: pd.DataFrame,
    draw: Callable[[Axes, pd.DataFrame, dict[str, Any]], object],
    *,
    by: str = "panel",
    marked: bool = False,
    **axes: Any,
) -> list[Figure]:
    """Return a figure for each value of column `by`; a wide page has them side by side.

    Args:
        draw: adds the rows of one policy to the axes, by their colour, label, and dashes or marker.
        marked: markers in place of dashes.
        axes: labels, limits and scales.
    """
    names = table["policy"].unique()
    colours, looks = colours_of(names), {}
    for number, name in enumerate(names):
        looks[name] = {"color": colours[name], "label": name} | (
            # Smaller and smaller, so that of equal values each is seen.
            {"marker": _MARKERS[number % len(_MARKERS)], "markersize": max(3.5, 7.5 - number)}
            if marked
            else {"dashes": _DASHES[number % len(_DASHES)]}
        )
    found = []
    for title in table[by].unique():
        with _canvas(3.9, 3.1 + 0.2 * -(-len(names) // 3)) as (figure, axis):
            for name, rows in table[table[by] == title].groupby("policy", sort=False):
                draw(axis, rows, looks[name])
            axis.set(title=title, **axes)
            for side in (axis.xaxis, axis.yaxis):
                _plain_ticks(side)
            # Below the axes, where it covers no line.
            labels, columns = axis.get_legend_handles_labels(), 2 if len(names) == 4 else 3
            figure.legend(*labels, loc="outside lower center", ncols=columns, fontsize="small")
            found.append(figure)
    return found


def _plain_ticks(side: Axis) -> None:
    """Give a logarithmic axis plain numbers, as many as fit."""
    if side.get_scale() == "log":
        decades = np.ptp(np.log10(side.get_view_interval()))
        wide = LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.5 else (1.0,), numticks=8)
        side.set_major_locator(wide if decades > 1 else MaxNLocator(5, steps=[1, 2, 5, 10]))
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        side.set_minor_locator(NullLocator())


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
    return _panels(table, draw, **axes, **scale)


def rate_figure(table: pd.DataFrame) -> list[Figure]:
    """Latency against the arrival rate: columns metric, policy, rate_per_s, p50, p99 (seconds)."""

    def draw(axis: Axes, rows: pd.DataFrame, look: dict[str, Any]) -> None:
        axis.plot(rows["rate_per_s"], rows["p50"], **{**look, "label": "_"})
        axis.plot(rows["rate_per_s"], rows["p99"], **look, ls="--")

    axes: dict[str, Any] = {"xlabel": "requests per second", "ylabel": "seconds"}
    return _panels(table, draw, by="metric", yscale="log", marked=True, **axes)


def band_figure(table: pd.DataFrame, xlabel: str) -> list[Figure]:
    """Lines with their 95% bands: columns panel, policy, x, value, low, high (seconds)."""
    values = table.groupby("panel")["value"]
    is_wide = values.max() > _WIDE * values.min()

    def draw(axis: Axes, rows: pd.DataFrame, look: dict[str, Any]) -> None:
        axis.plot(rows["x"], rows["value"], **look)
        axis.fill_between(rows["x"], rows["low"], rows["high"], color=look["color"], alpha=0.15)
        if is_wide[rows["panel"].iloc[0]]:
            axis.set_yscale("log")
        else:  # from 0, so that equal policies look equal
            axis.set_ylim(0, axis.dataLim.ymax * 1.05)

    return _panels(table, draw, marked=True, xlabel=xlabel, ylabel="seconds")


def bar_figure(
    table: pd.DataFrame, xlabel: str, *, by: str = "policy", mark: float | None = None
) -> Figure:
    """Bars with their 95% intervals: columns policy, mean, low, high; coloured by column `by`."""
    colours = table[by].map(colours_of(table[by])).tolist()
    width = 4.6 + 0.08 * table["policy"].str.len().max()
    with _canvas(width, 0.8 + 0.3 * len(table)) as (figure, axis):
        spread = np.abs(table[["low", "high"]].to_numpy() - table[["mean"]].to_numpy()).T.tolist()
        bars = axis.barh(table.index, table["mean"], xerr=spread, color=colours, height=0.6)
        axis.set_yticks(table.index, table["policy"])
        axis.bar_label(bars, fmt="%.3g", padding=6)
        axis.margins(x=0.12, y=0.01)
        axis.set(xlabel=xlabel)
        if mark is not None:
            axis.axvline(mark, color="black", linewidth=0.8)
        axis.grid(visible=False, axis="y")
        axis.invert_yaxis()
        return figure
