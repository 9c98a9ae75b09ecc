"""Reports: one HTML page with its tables and figures inside, readable without a network."""

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
from importlib.metadata import version
from typing import Any, Final

import matplotlib
from matplotlib.figure import Figure

from lengthwise.bundle import BANNER

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
"""Settings of matplotlib for every figure of a report."""


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """Rows of a report table. Numbers of a column are shown with equally many decimals."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, kw_only=True)
class ReportSection:
    """One part of a report: a heading, words, then a table and a figure where there are any."""

    heading: str
    text: str = ""
    table: ReportTable | None = None
    figure: Figure | Sequence[Figure] | None = None
    """Several stand side by side where there is room, else one under the other."""
    caption: str = ""


def page_text(*, title: str, lead: str, sections: Sequence[ReportSection]) -> str:
    """Return a report as HTML that needs nothing else.

    A lead that begins with the warning of invented data shows it as a red banner.
    """
    body = "\n".join(_section(section) for section in sections)
    banner = f'<p class="banner">{BANNER}</p>' if BANNER in lead else ""
    lead = html.escape(lead.replace(f"{BANNER}. ", ""))
    return _PAGE.format(
        title=html.escape(title), banner=banner, lead=lead, style=_CSS, body=body, footer=_footer()
    )


def svg_of(figure: Figure) -> str:
    """Return the figure as an `<svg>` element that a page may make smaller, but not larger."""
    buffer = io.StringIO()
    with matplotlib.rc_context(FIGURE_STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    size = r'<svg ([^>]*?)width="([^"]*)" height="[^"]*"'
    return re.sub(size, r'<svg style="max-width:\2" \1', svg[svg.index("<svg") :], count=1)


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


def _table(table: ReportTable) -> str:
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    looks = [' class="text"' if any(map(_is_text, column)) else "" for column in columns]

    def row(tag: str, cells: Sequence[str]) -> str:
        pairs = zip(looks, cells, strict=True)
        filled = (f"<{tag}{look}>{html.escape(cell)}</{tag}>" for look, cell in pairs)
        return "<tr>" + "".join(filled) + "</tr>"

    rows = "".join(row("td", cells) for cells in zip(*map(_cells, columns), strict=True))
    return f'<div class="wide"><table>{row("th", table.columns)}{rows}</table></div>'


def _is_text(value: Any) -> bool:
    """Return whether a cell holds words: its column is read from the left."""
    return isinstance(value, str) and value[:1].isalpha()


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
    """Return what made the page: command, version, day and machine."""
    made_s = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    day = datetime.fromtimestamp(made_s, UTC).date()
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    command = shlex.join(["python", *sys.orig_argv[1:]])
    made = (
        f"Lengthwise {version('lengthwise')}, {day}, {machine}, Python {platform.python_version()}"
    )
    return f"<footer><code>{html.escape(command)}</code><br>{html.escape(made)}</footer>"


_CSS: Final = """
:root { color-scheme: light dark; --ink: #222; --soft: #555; --line: #ddd; --paper: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e4; --soft: #a8a8a8; --line: #444; --paper: #161616; }
  svg { filter: invert(.92) hue-rotate(180deg); }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
body { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.lead { font-size: 1.1rem; } figure { margin: 1rem 0; }
.panels { display: flex; flex-wrap: wrap; gap: 1rem; }
.panels svg { flex: 1 1 18rem; min-width: 0; height: auto; }
figcaption, footer { font-size: .85rem; color: var(--soft); }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .5rem; }
code { overflow-wrap: anywhere; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; } th { vertical-align: bottom; }
th:first-child, td:first-child, .text { text-align: left; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--paper); }
@media (max-width: 40rem) {
  table { font-size: .8rem; } th, td { padding: .25rem .4rem; } td { white-space: normal; }
}
.banner { background: #b00020; color: #fff; font-weight: 600; padding: .6rem 1rem; }
"""

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body>{banner}<h1>{title}</h1><p class="lead">{lead}</p>
{body}
{footer}
</body></html>
"""
