"""Report of a paper: its rows as a table, and sections with a figure each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import pandas as pd

from scheduler_adapters.papers.rows import PaperFigure
from scheduler_adapters.papers.runs import ReproduceConfig
from scheduler_adapters.reporting.figures import capacity_figure, instances_figure, series_figure
from scheduler_adapters.reporting.latency_tables import capacity_table, series_table
from scheduler_adapters.reporting.page import ReportTable, Section, write_report


def write_page(
    config: ReproduceConfig,
    conditions: str,
    rows: Sequence[PaperFigure],
    more: Sequence[Section] = (),
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
        sections=[Section(heading="Figures", text=conditions, table=table), *more],
    )[0]


def lines_section(
    heading: str,
    points: Iterable[tuple[str, str, float, float]],
    axes: tuple[str, str],
    caption: str,
    file: str,
) -> Section:
    """Return a figure of lines; `points` are panel, system, x and y, and `axes` names x and y."""
    drawn = series_table(points)
    figure = series_figure(drawn, *axes)
    return Section(heading=heading, figure=figure, caption=caption, drawn=(file, drawn))


def bars_section(
    heading: str, found: Mapping[str, list[float]], label: str, caption: str, file: str
) -> Section:
    """Return a figure of bars: the mean of each entry, with its 95% interval."""
    drawn = capacity_table(found)
    figure = capacity_figure(drawn, label)
    return Section(heading=heading, figure=figure, caption=caption, drawn=(file, drawn))


def instances_section(
    heading: str,
    spans: Sequence[tuple[int, str, float, float]],
    moves: Sequence[tuple[int, int, float, str]],
    caption: str,
    file: str,
    *,
    writes_moves: bool = False,
) -> Section:
    """Return the roles of instances over time, and the requests that moved between them.

    Args:
        spans: instance, role, start and end in seconds.
        moves: source, destination, end in seconds, and kind.
        writes_moves: whether the file beside the figure holds the moves, not the spans.
    """
    roles = pd.DataFrame(spans, columns=["instance", "role", "start_s", "end_s"])
    moved = pd.DataFrame(moves, columns=["source", "destination", "end_s", "kind"])
    figure = instances_figure(roles, moved)
    return Section(
        heading=heading,
        figure=figure,
        caption=caption,
        drawn=(file, moved if writes_moves else roles),
    )
