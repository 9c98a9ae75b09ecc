"""Reports: one HTML page (`report_page.html`) with its tables and figures inside."""

from __future__ import annotations

import html
import io
import math
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from lengthwise import __version__
from lengthwise.tables.files import write_whole

if TYPE_CHECKING:
    import pandas as pd

FIGURE_STYLE: Final[dict[Any, Any]] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "svg.fonttype": "none",
    "svg.hashsalt": "lengthwise",
    "legend.frameon": False,
    "legend.handlelength": 2.8,
    "savefig.transparent": True,
}


@dataclass(frozen=True, kw_only=True)
class ReportSection:
    """One part of a report: a heading, paragraphs, a table and figures."""

    heading: str
    text: str = ""
    table: pd.DataFrame | None = None
    """Numbers of a column are shown with equally many decimals."""
    figure: Figure | Sequence[Figure] | None = None
    """Several figures are side by side on a wide page."""
    caption: str = ""
    drawn: tuple[str, pd.DataFrame] | None = None
    """Name without suffix of files with the figure and its table, and that table."""


def write_report(
    folder: Path, *, title: str, lead: str, sections: Sequence[ReportSection]
) -> list[Path]:
    """Write report.html, and beside it every `drawn` figure with its table; returns the files."""
    written = []
    for section in sections:
        if section.drawn is not None and section.figure is not None:
            name, table = section.drawn
            written.append(save_table(table, folder / f"{name}.csv"))
            written.append(save_figure(section.figure, folder / f"{name}.svg"))
    page = page_text(title=title, lead=lead, sections=sections)
    return [write_page(folder / "report.html", page), *written]


def write_page(path: Path, page: str) -> Path:
    """Write a page whole or not at all; returns the path. Raises DataError if it cannot."""
    return write_whole(path, lambda part: part.write_text(page, encoding="utf-8"), make_folder=True)


def save_table(table: pd.DataFrame, path: Path) -> Path:
    """Write a table as CSV; returns the path."""
    return write_whole(path, lambda part: table.to_csv(part, index=False), make_folder=True)


def page_text(*, title: str, lead: str, sections: Sequence[ReportSection]) -> str:
    """Return a report as HTML without links to other files."""
    body = "\n".join(_section(section) for section in sections)
    lead = html.escape(lead)
    page = Template(files("lengthwise").joinpath("report_page.html").read_text())
    return page.substitute(title=html.escape(title), lead=lead, body=body, footer=_footer())


def svg_of(figure: Figure) -> str:
    """Return the figure as an `<svg>` element that becomes smaller on a narrow page."""
    buffer = io.StringIO()
    with matplotlib.rc_context(FIGURE_STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    size = r'<svg ([^>]*?)width="([^"]*)" height="[^"]*"'
    return re.sub(size, r'<svg style="max-width:\2" \1', svg[svg.index("<svg") :], count=1)


def save_figure(figure: Figure | Sequence[Figure], path: Path) -> Path:
    """Write a figure as a file, in the format of the suffix; returns the path.

    Several figures become one SVG file, side by side.
    """
    if not isinstance(figure, Figure):
        return write_whole(path, lambda part: part.write_text(_row_of(figure)), make_folder=True)

    def save(part: Path) -> None:
        with matplotlib.rc_context(FIGURE_STYLE):
            figure.savefig(part, metadata={"Date": None} if path.suffix == ".svg" else None)

    return write_whole(path, save, make_folder=True)


def _row_of(figures: Sequence[Figure]) -> str:
    """Return one SVG document with the figures of equal height side by side."""
    sizes_pt = [figure.get_size_inches() * 72 for figure in figures]
    starts = np.cumsum([0.0, *(width for width, _ in sizes_pt)])
    panels = [
        re.sub("<svg ", f'<svg x="{start:g}" width="{width:g}" height="{height:g}" ', svg, count=1)
        for start, (width, height), svg in zip(starts, sizes_pt, map(svg_of, figures), strict=False)
    ]
    size = f'width="{starts[-1]:g}pt" height="{sizes_pt[0][1]:g}pt"'
    box = f'viewBox="0 0 {starts[-1]:g} {sizes_pt[0][1]:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box}>{"".join(panels)}</svg>\n'


def _section(section: ReportSection) -> str:
    parts = [f"<h2>{html.escape(section.heading)}</h2>"]
    parts += [f"<p>{html.escape(p)}</p>" for p in section.text.split("\n\n") if p]
    if section.table is not None:
        parts.append(_table(section.table))
    if section.figure is not None:
        shown = [section.figure] if isinstance(section.figure, Figure) else section.figure
        panels = "".join(svg_of(figure) for figure in shown)
        caption = f"<figcaption>{html.escape(section.caption)}</figcaption>"
        parts.append(f'<figure><div class="panels">{panels}</div>{caption}</figure>')
    return "<section>" + "".join(parts) + "</section>"


def _table(table: pd.DataFrame) -> str:
    columns = table.to_numpy(dtype=object).T.tolist()
    looks = [' class="text"' if any(map(_is_text, column)) else "" for column in columns]

    def row(tag: str, cells: Sequence[str]) -> str:
        pairs = zip(looks, cells, strict=True)
        filled = (f"<{tag}{look}>{html.escape(cell)}</{tag}>" for look, cell in pairs)
        return "<tr>" + "".join(filled) + "</tr>"

    rows = "".join(row("td", cells) for cells in zip(*map(_cells, columns), strict=True))
    return f'<div class="wide"><table>{row("th", [*table])}{rows}</table></div>'


def _is_text(value: Any) -> bool:
    """Return whether a cell holds words, or is long: aligned to the left, and wrapped."""
    return isinstance(value, str) and (value[:1].isalpha() or len(value) > 30)


def _cells(values: Sequence[Any]) -> list[str]:
    """Return a column as text; its numbers have equally many decimals, so that points align."""
    sizes = [abs(v) for v in values if isinstance(v, float) and math.isfinite(v) and v % 1]
    # Three significant digits of the least, but no more than four of the largest.
    least, largest = (math.floor(math.log10(f(sizes, default=1e3))) for f in (min, max))
    decimals = max(0, min(2 - least, 3 - largest))
    return [
        "-" if value is None or value != value
        else f"{value:,.{decimals}f}" if isinstance(value, float)
        else str(value)
        for value in values
    ]  # fmt: skip


def _footer() -> str:
    day = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), UTC).date()
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    is_short = Path(sys.argv[0]).name == "lengthwise"
    words = ["lengthwise", *sys.argv[1:]] if is_short else ["python", *sys.orig_argv[1:]]
    made = f"Lengthwise {__version__}, {day}, {machine}, Python {platform.python_version()}"
    return f"<footer><code>{html.escape(shlex.join(words))}</code><br>{html.escape(made)}</footer>"
