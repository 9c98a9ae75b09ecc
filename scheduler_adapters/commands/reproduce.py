"""`reproduce`: a paper's headline figures beside ours, with what counts as reproduced."""

import importlib
from dataclasses import asdict
from pathlib import Path

from lengthwise.strict_json import to_json
from scheduler_adapters.papers.page import write_page
from scheduler_adapters.papers.rows import read_paper
from scheduler_adapters.papers.runs import PAPERS, ReproduceConfig


def run(config: ReproduceConfig) -> None:
    """Run a paper's experiments in virtual time and print its figures beside ours.

    Examples:
      python -m scheduler_adapters reproduce slai --json
      python -m scheduler_adapters reproduce pars --scored run/test.parquet \\
          --scores bundle:run/bundle

    Hardware differs, so a row counts as reproduced by a criterion of its own, such as an order of
    systems or a band. Each row shows whether its criterion was set before our figures were seen.
    """
    module = importlib.import_module(f"scheduler_adapters.papers.{config.paper}")
    kind = getattr(module, PAPERS[config.paper])
    paper = read_paper(Path(module.__file__ or "").with_suffix(".toml"), kind)
    experiment = kind(config)
    rows = [row.figure(experiment) for row in paper.rows if row.is_wanted(config)]
    page = write_page(config, paper.conditions, rows)
    num_reproduced = sum(row.reproduced for row in rows)
    if config.json:
        counts = {"reproduced": num_reproduced, "total": len(rows), "report": str(page)}
        print(to_json({"paper": config.paper, "rows": [asdict(row) for row in rows], **counts}))
        return
    for row in rows:
        verdict = "yes" if row.reproduced else "NO "
        print(f"{verdict} {row.metric} | {row.workload} | {row.baseline}")
        print(f"      paper: {row.paper}; ours: {row.ours}")
        print(f"      counts if: {row.criterion} ({row.settled})")
        if row.note:
            print(f"      {row.note}")
    print(f"{num_reproduced} of {len(rows)} reproduced; report {page}")
