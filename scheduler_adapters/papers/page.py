"""Report of a paper: its rows as a table, and sections with a figure or a table each."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Plot

from lengthwise.report_page import ReportSection, ReportTable, write_report
from scheduler_adapters.papers.rows import Figure, PaperFigure
from scheduler_adapters.papers.runs import ReproduceConfig
from scheduler_adapters.reporting.figures import capacity_figure, series_figure
from scheduler_adapters.reporting.latency_tables import capacity_table, series_table


def write_page(
    config: ReproduceConfig,
    conditions: str,
    rows: Sequence[PaperFigure],
    more: Sequence[ReportSection] = (),
) -> Path:
    """Write the rows, and `more`, as a page that stands alone; returns its path."""
    folder = config.out or Path("mlruns") / "reproduce" / config.paper
    columns = {f.name: f.name for f in fields(PaperFigure)}
    columns |= {"criterion": "counts if", "pre_set": "criterion"}
    cells = [asdict(r) | {"reproduced": str(r.reproduced), "pre_set": r.settled} for r in rows]
    table = ReportTable(
        columns=list(columns.values()), rows=[[row[name] for name in columns] for row in cells]
    )
    return write_report(
        folder,
        title=f"{config.paper.upper()} reproduced in virtual time",
        lead=f"{sum(row.reproduced for row in rows)} of {len(rows)} rows reproduced.",
        sections=[ReportSection(heading="Figures", text=conditions, table=table), *more],
    )[0]


def section_of(figure: Figure, found: Mapping[str, Any]) -> ReportSection:
    """Return a section of the report.

    Args:
        found: values of the templates, and the data. Lines have `points`: panel, system, x and y.
            Bars have `bars`: the values of each. Tables have `rows`.
    """
    drawn: pd.DataFrame | None = None
    plot: Plot | list[Plot] | None = None
    if figure.kind == "lines":
        drawn = series_table(found["points"])
        plot = series_figure(drawn, *figure.axes)
    elif figure.kind == "bars":
        drawn = capacity_table(found["bars"])
        plot = capacity_figure(drawn, *figure.axes)
    columns = list(figure.columns)
    return ReportSection(
        heading=figure.heading.format_map(found),
        text=figure.text,
        table=ReportTable(columns=columns, rows=found["rows"]) if columns else None,
        figure=plot,
        caption=figure.caption.format_map(found),
        drawn=None if drawn is None else (figure.file.format_map(found), drawn),
    )
