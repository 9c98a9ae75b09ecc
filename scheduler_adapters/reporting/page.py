"""Reports: one HTML file with its tables and figures inside."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lengthwise.report_page import ReportSection, ReportTable, page_text
from scheduler_adapters.reporting.figures import save_figure
from scheduler_adapters.workload.table_files import write_whole

__all__ = ["ReportTable", "Section", "save_table", "table_of", "write_html", "write_report"]


@dataclass(frozen=True, kw_only=True)
class Section(ReportSection):
    """Section of a report that may have its figure and table as files, too."""

    drawn: tuple[str, pd.DataFrame] | None = None
    """Name of the files without suffix, and the table of the figure."""


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
    """Write a report as one HTML file; returns the path."""
    page = page_text(title=title, lead=lead, sections=sections)
    return write_whole(path, lambda part: part.write_text(page, encoding="utf-8"), make_folder=True)


def table_of(table: pd.DataFrame) -> ReportTable:
    """Return a table as one of a report."""
    return ReportTable(columns=[*map(str, table)], rows=table.to_numpy(dtype=object).tolist())


def save_table(table: pd.DataFrame, path: Path) -> Path:
    """Write a table as CSV; returns the path."""
    return write_whole(path, lambda part: table.to_csv(part, index=False), make_folder=True)
