"""Figures and self-contained HTML reports. The only module here that imports a plotting library.

A figure is a function from plain data to a `Figure`; a report is one HTML file with the figures
inside it as SVG, readable on a phone and without a network.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from scoring_service.errors import ConfigError

COLOURS: Final = {"fcfs": "#8c8c8c", "pars": "#0b62a4", "oracle": "#2e8b57"}
"""A policy keeps its colour in every figure; those not named here take the next of `_CYCLE`."""

_CYCLE: Final = ("#c2571a", "#7d4fa3", "#b8860b", "#a0304e", "#3b8ea5", "#5b6f2a")
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


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of a report table. Numbers are shown with three significant digits."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of a report: a heading, words, then a table and a figure where there are any."""

    heading: str
    text: str = ""
    table: Table | None = None
    figure: Figure | None = None
    caption: str = ""


def colours_of(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name: its own where it has one, else the next of the cycle."""
    others = [name for name in names if name not in COLOURS]
    return {**COLOURS, **{n: _CYCLE[i % len(_CYCLE)] for i, n in enumerate(others)}}


def ecdf_figure(panels: Mapping[str, Mapping[str, ArrayLike]], xlabel: str) -> Figure:
    """Cumulative share of requests against a latency, one panel per title, one line per policy."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(4.6 * len(panels), 3.4), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (title, series) in zip(axes, panels.items(), strict=True):
            colours = colours_of(list(series))
            for name, values in series.items():
                x = np.sort(np.asarray(values, dtype=float))
                share = np.arange(1, x.size + 1) / max(x.size, 1)
                axis.step(x, share, where="post", color=colours[name], label=name, linewidth=1.8)
            axis.set(
                title=title or None, xlabel=xlabel, ylabel="share of requests finished", ylim=(0, 1)
            )
            axis.set_xlim(left=0)
            axis.legend(loc="lower right")
        return figure


def curve_figure(
    series: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    xlabel: str,
    ylabel: str,
    levels: Mapping[str, float] | None = None,
) -> Figure:
    """Lines y(x), one per name, over dashed horizontal reference levels."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 3.2), layout="constrained")
        axis = figure.subplots()
        colours = colours_of(list(series))
        for name, (x, y) in series.items():
            axis.plot(x, y, marker="o", markersize=3, color=colours[name], label=name)
        for name, level in (levels or {}).items():
            axis.axhline(level, linestyle="--", linewidth=1, color="#444", label=name)
        axis.set(xlabel=xlabel, ylabel=ylabel)
        axis.legend()
        return figure


def scatter_figure(
    x: ArrayLike, y: ArrayLike, *, xlabel: str, ylabel: str, log_y: bool = False
) -> Figure:
    """A cloud of points; drawn as pixels, so that thousands of them stay small in the file."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 3.4), layout="constrained", dpi=110)
        axis = figure.subplots()
        axis.scatter(x, y, s=7, alpha=0.35, color=COLOURS["pars"], linewidths=0, rasterized=True)
        axis.set(xlabel=xlabel, ylabel=ylabel)
        if log_y:
            axis.set_yscale("log")
        return figure


def svg_of(figure: Figure) -> str:
    """The figure as an `<svg>` element without a fixed size, so that a page can scale it."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    return re.sub(r'<svg ([^>]*?)height="[^"]*"([^>]*?)width="[^"]*"', r"<svg \1\2", svg, count=1)


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as a file of its own (the suffix says the format); returns the path."""
    with matplotlib.rc_context(_STYLE):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def write_html(path: Path, *, title: str, lead: str, sections: Sequence[Section]) -> Path:
    """Write a report as one HTML file that needs nothing else; returns the path.

    The file appears whole or not at all.

    Raises:
        ConfigError: `path` cannot be written.
    """
    body = "\n".join(_section(section) for section in sections)
    page = _PAGE.format(title=html.escape(title), lead=html.escape(lead), style=_CSS, body=body)
    work = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        work.write_text(page, encoding="utf-8")
        work.replace(path)
    except OSError as error:
        work.unlink(missing_ok=True) if work.parent.is_dir() else None
        raise ConfigError(f"the report cannot be written to {path}: {error}") from error
    return path


def _section(section: Section) -> str:
    parts = [f"<h2>{html.escape(section.heading)}</h2>"]
    parts += [f"<p>{html.escape(p)}</p>" for p in section.text.split("\n\n") if p]
    if section.table is not None:
        parts.append(_table(section.table))
    if section.figure is not None:
        caption = f"<figcaption>{html.escape(section.caption)}</figcaption>"
        parts.append(f"<figure>{svg_of(section.figure)}{caption}</figure>")
    return "<section>" + "".join(parts) + "</section>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(value))}</td>" for value in row) + "</tr>"
        for row in table.rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


_CSS: Final = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; }
body { max-width: 46rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.lead { font-size: 1.1rem; } figure { margin: 1rem 0; } svg { width: 100%; height: auto; }
figcaption { font-size: .85rem; color: #555; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #ddd; }
td { white-space: nowrap; } th { vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
"""

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body><h1>{title}</h1><p class="lead">{lead}</p>
{body}
</body></html>
"""
