"""Report of a paper: its rows as a table."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import pandas as pd

from lengthwise.report_page import ReportSection, write_report
from scheduler_adapters.papers.rows import PaperFigure
from scheduler_adapters.papers.runs import ReproduceConfig


def write_page(config: ReproduceConfig, conditions: str, rows: Sequence[PaperFigure]) -> Path:
    """Write the rows as a page that stands alone; returns its path."""
    folder = config.out or Path("mlruns") / "reproduce" / config.paper
    columns = {f.name: f.name for f in fields(PaperFigure)}
    columns |= {"criterion": "counts if", "pre_set": "criterion"}
    cells = [asdict(r) | {"reproduced": str(r.reproduced), "pre_set": r.settled} for r in rows]
    table = pd.DataFrame(cells, columns=list(columns)).rename(columns=columns)
    return write_report(
        folder,
        title=f"{config.paper.upper()} reproduced in virtual time",
        lead=f"{sum(row.reproduced for row in rows)} of {len(rows)} rows reproduced.",
        sections=[ReportSection(heading="Figures", text=conditions, table=table)],
    )[0]
