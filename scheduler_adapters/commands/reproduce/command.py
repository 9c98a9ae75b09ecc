"""`reproduce`: a paper's headline figures beside ours, with what counts as reproduced."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from scheduler_adapters.commands.reproduce.figure import PaperFigure, ReproduceConfig
from scheduler_adapters.reporting.page import ReportTable, Section, write_html
from scoring_service.strict_json import to_json


def run(config: ReproduceConfig) -> None:
    """Run a paper's experiments in virtual time and print its figures beside ours.

    Examples:
      python -m scheduler_adapters reproduce slai --json
      python -m scheduler_adapters reproduce pars --scored run/test.parquet \\
          --scores bundle:run/bundle

    Hardware differs, so a row counts as reproduced by a criterion of its own, such as an order of
    systems or a band; the row says whether that stood before our figures were seen.
    """
    module = importlib.import_module(f"scheduler_adapters.commands.reproduce.{config.paper}")
    measure: Callable[[ReproduceConfig], list[PaperFigure]] = module.figures
    rows = measure(config)
    page = write_page(config, module.__doc__ or "", rows)
    num_reproduced = sum(row.reproduced for row in rows)
    if config.json:
        result = {
            "paper": config.paper,
            "rows": [asdict(row) for row in rows],
            "reproduced": num_reproduced,
            "total": len(rows),
            "report": str(page),
        }
        print(to_json(result))
        return
    for row in rows:
        verdict = "yes" if row.reproduced else "NO "
        print(f"{verdict} {row.metric} | {row.workload} | {row.baseline}")
        print(f"      paper: {row.paper}; ours: {row.ours}")
        print(f"      counts if: {row.criterion} ({row.settled})")
        if row.note:
            print(f"      {row.note}")
    print(f"{num_reproduced} of {len(rows)} reproduced; report {page}")


def write_page(config: ReproduceConfig, conditions: str, rows: Sequence[PaperFigure]) -> Path:
    """The rows as a page that stands alone; returns its path."""
    folder = config.out or Path("mlruns") / "reproduce" / config.paper
    table = ReportTable(
        columns=[
            *("metric", "workload", "baseline", "paper", "ours"),
            *("reproduced", "counts if", "criterion", "note"),
        ],
        rows=[
            [
                *(r.metric, r.workload, r.baseline, r.paper, r.ours),
                *(str(r.reproduced), r.criterion, r.settled, r.note),
            ]
            for r in rows
        ],
    )
    lead = f"{sum(row.reproduced for row in rows)} of {len(rows)} rows reproduced."
    return write_html(
        folder / "report.html",
        title=f"{config.paper.upper()} reproduced in virtual time",
        lead=lead,
        sections=[Section(heading="Figures", text=conditions, table=table)],
    )
