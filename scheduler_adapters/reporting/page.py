"""Reports: one HTML file with its tables and figures inside, readable without a network."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lengthwise.report_page import ReportSection, ReportTable, page_text
from scheduler_adapters.reporting.figures import save_figure
from scheduler_adapters.workload.table_files import write_whole

__all__ = ["ReportTable", "Section", "save_table", "write_html", "write_report"]


@dataclass(frozen=True, kw_only=True)
class Section(ReportSection):
    """One part of a report, whose figure and table can be files as well."""

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


def write_html(path: Path, *, title: str, lead: str, sections: Sequence[ReportSection]) -> Path:
    """Write a report as one HTML file that needs nothing else; returns the path."""
    page = page_text(title=title, lead=lead, sections=sections)
    return write_whole(path, lambda part: part.write_text(page, encoding="utf-8"), make_folder=True)


def save_table(table: pd.DataFrame, path: Path) -> Path:
    """Write a table as CSV; returns the path."""
    return write_whole(path, lambda part: table.to_csv(part, index=False), make_folder=True)
