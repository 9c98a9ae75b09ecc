"""`reproduce`: a paper's headline figures beside ours, with what counts as reproduced."""

import importlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from benchmarks.papers.rows import KINDS, VERDICTS, Paper, PaperFigure, counts, read_paper
from benchmarks.papers.runs import ReproduceConfig
from lengthwise.report_page import ReportSection, write_report
from lengthwise.strict_json import to_json
from scheduler_adapters.reporting.figures import bar_figure


def run(config: ReproduceConfig) -> None:
    """Run a paper's experiments in virtual time and print its figures beside ours.

    Examples:
      python -m benchmarks reproduce slai --json
      python -m benchmarks reproduce pars --scored run/test.parquet \\
          --scores bundle:run/bundle

    Hardware differs, so a row has a criterion of its own for the direction, such as an order of
    systems, and mostly a band around the paper's number. The commit of the criteria is named.
    """
    module = importlib.import_module(f"benchmarks.papers.{config.paper}")
    kind = getattr(module, f"{config.paper.title()}Experiment")
    paper = read_paper(Path(module.__file__ or "").with_suffix(".toml"), kind)
    experiment = kind(config)
    rows = [row.figure(experiment) for row in paper.rows if row.is_wanted(config)]
    page = write_page(config, paper, rows)
    if config.json:
        found = {"counts": counts(rows), "criteria": paper.criteria, "report": str(page)}
        print(to_json({"paper": config.paper, "rows": [asdict(row) for row in rows], **found}))
        return
    for row in map(cells_of, rows):
        print(f"{row['verdict']:9} {row['figure']}", f"paper: {row['paper']}", sep="\n      ")
        for name in ("ours", "counts as", "note"):
            print(f"      {name}: {row[name]}\n" * bool(row[name]), end="")
    print(f"{in_words(paper, rows)} Report: {page}")


def cells_of(row: PaperFigure) -> dict[str, str]:
    """Return the texts of a row by the headings of the table."""
    bounds = {"direction": row.criterion, "figure": row.band}
    return {
        "figure": f"{row.metric}; {row.workload}; against {row.baseline}",
        "verdict": row.verdict if row.kind == "paper" else f"{row.verdict} ({row.kind})",
        "paper": row.paper,
        "ours": row.ours,
        "counts as": "; ".join(f"{verdict} if {text}" for verdict, text in bounds.items() if text),
        "note": row.note,
    }


def in_words(paper: Paper, rows: Sequence[PaperFigure]) -> str:
    """Return the three numbers of each kind of row, and the commit of the criteria."""
    found = counts(rows)
    each = {kind: ", ".join(f"{found[kind][one]} {one}" for one in VERDICTS) for kind in KINDS}
    texts = [f"{kind} {text}" for kind, text in each.items() if any(found[kind].values())]
    return f"Rows: {'; '.join(texts)}. Criteria: {paper.criteria}."


def write_page(config: ReproduceConfig, paper: Paper, rows: Sequence[PaperFigure]) -> Path:
    """Write the rows as a page that stands alone; returns its path."""
    points = [
        (f"{one.verdict}: {one.metric}, {one.workload}"[:80], one.verdict, *ratio)
        for one in rows
        for ratio in one.ratios
    ]
    sections = []
    if points:
        drawn = pd.DataFrame(points, columns=["policy", "verdict", "mean", "low", "high"])
        caption = "Rows with a number of the paper's, which is 1 here. Whiskers: 95% intervals."
        figure = bar_figure(drawn, "ours / the paper's", by="verdict", mark=1.0)
        sections.append(ReportSection(heading="Beside the paper", figure=figure, caption=caption))
    table = pd.DataFrame(map(cells_of, rows))
    sections.append(ReportSection(heading="Figures", text=paper.conditions, table=table))
    return write_report(
        config.out or Path("mlruns") / "reproduce" / config.paper,
        title=f"{config.paper.upper()} reproduced in virtual time",
        lead=in_words(paper, rows),
        sections=sections,
    )[0]
