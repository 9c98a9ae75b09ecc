"""Figures of tables, as SVG. The only module here that imports a plotting library."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter, StrMethodFormatter
from numpy.typing import ArrayLike

from scheduler_adapters.workload.tables import write_whole

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
}
"""A policy keeps its colour in every figure; those not named here take the next of `_CYCLE`."""

_CYCLE: Final = ("#0f8b8d", "#e0a030", "#6a3d3d", "#3f4a8a", "#97b83c", "#c060c0")
_STYLE: Final[dict[Any, Any]] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "svg.fonttype": "none",
    "svg.hashsalt": "lengthwise",
    "legend.frameon": False,
}


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each name: its own where it has one, else the next of the cycle."""
    others = dict.fromkeys(name for name in names if name not in COLOURS)
    return {**COLOURS, **{n: _CYCLE[i % len(_CYCLE)] for i, n in enumerate(others)}}


def _each(table: pd.DataFrame, names: pd.Series[str]) -> Iterator[tuple[str, pd.DataFrame, str]]:
    """Yield every policy of a table, its rows and its colour among all `names`."""
    colours = colours_of(names)
    for name, rows in table.groupby("policy", sort=False):
        yield str(name), rows, colours[str(name)]


@contextmanager
def _canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, **more: Any
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of that many inches in our style, and its panels."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained", **more)
        panels = figure.subplots(rows, columns, squeeze=False, sharex=rows > 1)
        yield figure, panels.ravel().tolist()


def ecdf_figure(table: pd.DataFrame, xlabel: str, *, log_x: bool = False) -> Figure:
    """Cumulative share against a latency: one panel per `panel` of `ecdf_table`, side by side."""
    titles = list(dict.fromkeys(table["panel"]))
    with _canvas(_width(len(titles)), 3.4, columns=len(titles)) as (figure, axes):
        for axis, title in zip(axes, titles, strict=True):
            for name, rows, color in _each(table[table["panel"] == title], table["policy"]):
                line: dict[str, Any] = {"color": color, "linewidth": 1.8, "label": name}
                axis.step(rows["value"], rows["share"], where="post", **line)
            axis.set(title=title or None, xlabel=xlabel, ylim=(0, 1.01))
            if log_x:
                _use_log(axis, "x")
            else:
                axis.set_xlim(left=0)
        axes[0].set_ylabel("share of requests finished" if len(titles) == 1 else "share")
        axes[-1].legend(loc="lower right")
        return figure


def _width(num_panels: int) -> float:
    """Inches; panels side by side share the width of a page."""
    return 4.6 * min(num_panels, 2) if num_panels < 3 else 3.4 * num_panels


def _use_log(axis: Axes, which: Literal["x", "y"]) -> None:
    """A logarithmic axis labelled 0.1, 1, 10; between them only where it spans less than that."""
    axis.set(**{f"{which}scale": "log"})
    ticks, (low, high) = (
        (axis.xaxis, axis.get_xlim()) if which == "x" else (axis.yaxis, axis.get_ylim())
    )
    ticks.set_major_formatter(StrMethodFormatter("{x:g}"))
    is_narrow = high < 30 * low
    ticks.set_minor_locator(LogLocator(subs=(2, 5) if is_narrow else "auto"))
    ticks.set_minor_formatter(StrMethodFormatter("{x:g}") if is_narrow else NullFormatter())


def rate_figure(table: pd.DataFrame) -> Figure:
    """Latency against the arrival rate: columns metric, policy, rate_per_s, p50, p99 (seconds)."""
    metrics = list(dict.fromkeys(table["metric"]))
    with _canvas(_width(len(metrics)), 3.8, columns=len(metrics)) as (figure, axes):
        for axis, metric in zip(axes, metrics, strict=True):
            for name, rows, color in _each(table[table["metric"] == metric], table["policy"]):
                line: dict[str, Any] = {"color": color, "marker": "o", "markersize": 3.5}
                axis.plot(rows["rate_per_s"], rows["p50"], **line, label=f"{name} p50")
                axis.plot(rows["rate_per_s"], rows["p99"], **line, ls="--", label=f"{name} p99")
            axis.set(title=metric, xlabel="requests per second")
            _use_log(axis, "y")
        axes[0].set_ylabel("seconds")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels) // 2, 5))
        return figure


def load_figure(table: pd.DataFrame) -> Figure:
    """KV use, running and waiting requests over virtual time, one above the other.

    Columns policy, at_s, kv_usage_fraction, num_resident, num_waiting.
    """
    panels = {
        "kv_usage_fraction": "KV blocks in use",
        "num_resident": "requests running",
        "num_waiting": "requests waiting",
    }
    with _canvas(9.2, 6.4, rows=len(panels)) as (figure, axes):
        for axis, (column, label) in zip(axes, panels.items(), strict=True):
            for name, rows, color in _each(table, table["policy"]):
                line: dict[str, Any] = {"color": color, "linewidth": 1.4, "alpha": 0.9}
                axis.plot(rows["at_s"], rows[column], **line, label=name)
            axis.set(ylabel=label)
            axis.set_ylim(bottom=0)
        axes[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes[-1].set(xlabel="virtual time (s)", xlim=(0, table["at_s"].max()))
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=6)
        return figure


def capacity_figure(table: pd.DataFrame, xlabel: str) -> Figure:
    """Bars with their 95% intervals: columns policy, mean, low, high."""
    colours = colours_of(table["policy"])
    with _canvas(5.6, 0.8 + 0.42 * len(table)) as (figure, [axis]):
        spread = np.abs(table[["low", "high"]].to_numpy() - table[["mean"]].to_numpy()).T.tolist()
        colour = [colours[name] for name in table["policy"]]
        bars = axis.barh(table["policy"], table["mean"], xerr=spread, color=colour, height=0.6)
        axis.bar_label(bars, fmt="%.3g", padding=6)
        axis.margins(x=0.12)
        axis.set(xlabel=xlabel)
        axis.grid(visible=False, axis="y")
        axis.invert_yaxis()
        return figure


ROLE_COLOURS: Final = {"prefill": "#e8c48c", "decode": "#9cc4e4", "both": "#e4e4e4"}


def instances_figure(spans: pd.DataFrame, moves: pd.DataFrame) -> Figure:
    """Instances over time: their roles as bars, and the requests that moved between them.

    Columns of `spans`: instance, role, start_s, end_s; of `moves`: source, destination, end_s and
    kind, whose first word in order of the alphabet is drawn first.
    """
    numbers = sorted(spans["instance"].unique())
    with _canvas(9.0, 1.0 + 0.42 * len(numbers)) as (figure, [axis]):
        for role, rows in spans.groupby("role"):
            widths = rows["end_s"] - rows["start_s"]
            colour = ROLE_COLOURS[str(role)]
            axis.barh(rows["instance"], widths, left=rows["start_s"], color=colour, label=role)
        # As pixels: there are thousands of them.
        for (kind, rows), colour in zip(
            moves.groupby("kind"), ("#555555", "#c0392b"), strict=False
        ):
            line: dict[str, Any] = {"color": colour, "alpha": 0.35, "linewidth": 0.6}
            ends = rows["source"], rows["destination"]
            axis.vlines(rows["end_s"], *ends, **line, rasterized=True, label=str(kind))
        axis.set(xlabel="time (s)", ylabel="instance", yticks=numbers)
        axis.grid(visible=False, axis="y")
        axis.invert_yaxis()
        axis.legend(loc="upper center", ncols=5, bbox_to_anchor=(0.5, 1.2))
        return figure


def series_figure(table: pd.DataFrame, xlabel: str, ylabel: str) -> Figure:
    """Lines over a common axis: columns policy, x, y; panels side by side by `panel`."""
    titles = list(dict.fromkeys(table["panel"]))
    with _canvas(_width(len(titles)), 3.4, columns=len(titles)) as (figure, axes):
        for axis, title in zip(axes, titles, strict=True):
            for name, rows, color in _each(table[table["panel"] == title], table["policy"]):
                axis.plot(rows["x"], rows["y"], color=color, linewidth=1.5, label=name)
            axis.set(title=title or None, xlabel=xlabel, ylim=(0, None))
        axes[0].set_ylabel(ylabel)
        axes[-1].legend()
        return figure


def tau_figure(steps: ArrayLike, tau_b: ArrayLike) -> Figure:
    """The agreement of a ranker on its validation prompts while it is trained."""
    with _canvas(5.6, 3.2) as (figure, [axis]):
        axis.plot(steps, tau_b, marker="o", markersize=3, color=COLOURS["pars"], label="pars")
        axis.set(xlabel="optimiser step", ylabel="tau_b on validation prompts")
        axis.legend()
        return figure


def scatter_figure(scores: ArrayLike, lengths: ArrayLike) -> Figure:
    """Scores and lengths; drawn as pixels, so that thousands of them stay small in the file."""
    with _canvas(5.6, 3.4, dpi=110) as (figure, [axis]):
        dots: dict[str, Any] = {"s": 7, "alpha": 0.35, "color": COLOURS["pars"], "linewidths": 0}
        axis.scatter(scores, lengths, **dots, rasterized=True)
        axis.set(xlabel="score (higher = longer)", ylabel="response length (tokens)")
        axis.set_yscale("log")
        return figure


def agreement_figure(table: pd.DataFrame, metric: str) -> Figure:
    """Simulated against measured, on and off the dashed line of equality.

    Columns measured_s and simulated_s; lowest_s and highest_s where runs were repeated (the bar is
    their range); policy where there are several, each with its colour.
    """
    with _canvas(5.6, 3.6) as (figure, [axis]):
        has_range, has_policies = "lowest_s" in table, "policy" in table
        table = table if has_policies else table.assign(policy="pars")
        is_large = len(table) > 1000  # as pixels, so that the file stays small
        for name, rows, color in _each(table, table["policy"]):
            real = rows["measured_s"]
            spread = [real - rows["lowest_s"], rows["highest_s"] - real] if has_range else None
            dots: dict[str, Any] = {"fmt": "o", "markersize": 3, "color": color, "label": name}
            bars: dict[str, Any] = {"ecolor": to_rgba(color, 0.3), "elinewidth": 1}
            axis.errorbar(
                real, rows["simulated_s"], xerr=spread, **dots, **bars, rasterized=is_large
            )
        axis.axline((0, 0), slope=1, linestyle="--", linewidth=1, color="#444")
        measured = "measured, mean and range" if has_range else "measured"
        axis.set(xlabel=f"{metric} {measured} (s)", ylabel=f"{metric} simulated (s)")
        if has_policies:
            axis.legend()
        return figure


def svg_of(figure: Figure) -> str:
    """Return the figure as an `<svg>` element that a page may make smaller, but not larger."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    size = r'<svg ([^>]*?)width="([^"]*)" height="[^"]*"'
    return re.sub(size, r'<svg style="max-width:\2" \1', svg[svg.index("<svg") :], count=1)


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as a file of its own (the suffix says the format); returns the path."""

    def save(part: Path) -> None:
        with matplotlib.rc_context(_STYLE):
            figure.savefig(part, metadata={"Date": None} if path.suffix == ".svg" else None)

    return write_whole(path, save, make_folder=True)
