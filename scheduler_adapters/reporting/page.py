"""Reports: one HTML file with its tables and figures inside, readable without a network."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd
from matplotlib.figure import Figure

from scheduler_adapters.reporting.figures import save_figure, svg_of
from scheduler_adapters.workload.tables import write_whole
from scoring_service.bundle import BANNER


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """Rows of a report table. Numbers are shown with three significant digits."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of a report: a heading, words, then a table and a figure where there are any."""

    heading: str
    text: str = ""
    table: ReportTable | None = None
    figure: Figure | None = None
    caption: str = ""
    drawn: tuple[str, pd.DataFrame] | None = None
    """File name without suffix, and the table that the figure shows: both are files as well."""


def write_report(folder: Path, *, title: str, lead: str, sections: Sequence[Section]) -> list[Path]:
    """Write report.html, and beside it every `drawn` figure with its table; returns the files."""
    files = []
    for section in sections:
        if section.drawn is not None and section.figure is not None:
            name, table = section.drawn
            files.append(save_table(table, folder / f"{name}.csv"))
            files.append(save_figure(section.figure, folder / f"{name}.svg"))
    page = write_html(folder / "report.html", title=title, lead=lead, sections=sections)
    return [page, *files]


def write_html(path: Path, *, title: str, lead: str, sections: Sequence[Section]) -> Path:
    """Write a report as one HTML file that needs nothing else; returns the path.

    A lead that begins with the warning of invented data shows it as a red banner.
    """
    body = "\n".join(_section(section) for section in sections)
    banner = f'<p class="banner">{BANNER}</p>' if BANNER in lead else ""
    lead = html.escape(lead.replace(f"{BANNER}. ", ""))
    page = _PAGE.format(title=html.escape(title), banner=banner, lead=lead, style=_CSS, body=body)
    return write_whole(path, lambda part: part.write_text(page, encoding="utf-8"), make_folder=True)


def save_table(table: pd.DataFrame, path: Path) -> Path:
    """Write a table as CSV; returns the path."""
    return write_whole(path, lambda part: table.to_csv(part, index=False), make_folder=True)


def _section(section: Section) -> str:
    parts = [f"<h2>{html.escape(section.heading)}</h2>"]
    parts += [f"<p>{html.escape(p)}</p>" for p in section.text.split("\n\n") if p]
    if section.table is not None:
        parts.append(_table(section.table))
    if section.figure is not None:
        caption = f"<figcaption>{html.escape(section.caption)}</figcaption>"
        parts.append(f"<figure>{svg_of(section.figure)}{caption}</figure>")
    return "<section>" + "".join(parts) + "</section>"


def _table(table: ReportTable) -> str:
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
body { max-width: 54rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.lead { font-size: 1.1rem; } figure { margin: 1rem 0; } svg { width: 100%; height: auto; }
figcaption { font-size: .85rem; color: #555; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #ddd; }
td { white-space: nowrap; } th { vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
.banner { background: #b00020; color: #fff; font-weight: 600; padding: .6rem 1rem; }
"""

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body>{banner}<h1>{title}</h1><p class="lead">{lead}</p>
{body}
</body></html>
"""
