"""Report of a paper: its rows as a table."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from benchmarks.papers.rows import KINDS, VERDICTS, Paper, PaperFigure, counts
from benchmarks.papers.runs import ReproduceConfig
from lengthwise.report_page import ReportSection, write_report


def in_words(paper: Paper, rows: Sequence[PaperFigure]) -> str:
    """Return the three numbers of each kind of row, and the commit of the criteria."""
    found = counts(rows)
    each = {kind: ", ".join(f"{found[kind][one]} {one}" for one in VERDICTS) for kind in KINDS}
    texts = [f"{kind} {text}" for kind, text in each.items() if any(found[kind].values())]
    return f"Rows: {'; '.join(texts)}. Criteria: {paper.criteria}."


def write_page(config: ReproduceConfig, paper: Paper, rows: Sequence[PaperFigure]) -> Path:
    """Write the rows as a page that stands alone; returns its path."""
    names = {"criterion": "direction if", "band": "figure if also", "kind": "row"}
    table = pd.DataFrame(map(asdict, rows)).rename(columns=names)
    return write_report(
        config.out or Path("mlruns") / "reproduce" / config.paper,
        title=f"{config.paper.upper()} reproduced in virtual time",
        lead=in_words(paper, rows),
        sections=[ReportSection(heading="Figures", text=paper.conditions, table=table)],
    )[0]
