"""`reproduce`: a paper's headline figures beside ours, with what counts as reproduced."""

import importlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final

from lengthwise.command_line.options import POSITIONAL
from lengthwise.errors import ConfigError, at_least, require
from lengthwise.strict_json import to_json
from scheduler_adapters.reporting.page import ReportTable, Section, write_report

PAPERS: Final = ("pars", "slai", "rad", "pascal", "phasor")
"""Each a module of this folder with `figures(config)`; its docstring tells the conditions. With
`sections(config)` the report has more than the table."""
MODELS: Final = ("qwen2.5-7b", "llama-3-8b")
"""Of the Phasor paper."""


@dataclass(frozen=True, kw_only=True)
class ReproduceConfig:
    """A paper, and the length of its runs."""

    paper: str = field(metadata=POSITIONAL)
    """pars, slai, rad, pascal or phasor."""
    seeds: int | None = None
    """Runs per point with other arrivals; figures are means over them. None: 2 for slai and rad,
    5 for the others; searches for a capacity take 3 at most."""
    scale: float = 1.0
    """Share of the full length of each run, .005 to 1; below 1 bands may be missed by noise."""
    model: str = "qwen2.5-7b"
    """phasor only: the model that is served, qwen2.5-7b or llama-3-8b."""
    scored: Path | None = None
    """pars only: a trace in the order of a trained ranker too, such as test.parquet of a training
    run; none: synthetic scores only."""
    scores: str = "trace"
    """Where its scores come from: its column score, or its column prompt scored by bundle:PATH or
    service:HOST:PORT."""
    out: Path | None = None
    """Folder for report.html; none: mlruns/reproduce/PAPER."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        if self.paper not in PAPERS:
            raise ConfigError(f"no paper named {self.paper!r}; use one of {', '.join(PAPERS)}")
        at_least("seeds", self.seeds, 1)
        require("scale", self.scale, 0.005 <= self.scale <= 1, "a number from .005 to 1")
        require("model", repr(self.model), self.model in MODELS, "one of " + ", ".join(MODELS))
        if self.model != MODELS[0] and self.paper != "phasor":
            raise ConfigError(
                f"model is {self.model!r}, which {self.paper} does not read; use it with phasor"
            )
        if self.scored is not None and self.paper != "pars":
            raise ConfigError(
                f"scored is {self.scored}, which {self.paper} does not read; use it with pars"
            )
        if self.scored is None and self.scores != "trace":
            raise ConfigError(f"scores is {self.scores!r} but there is no trace; add --scored FILE")

    @property
    def num_seeds(self) -> int:
        """`seeds`, or as many as the paper's figures need."""
        return self.seeds or (2 if self.paper in ("slai", "rad") else 5)


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """One figure of a paper, and ours."""

    metric: str
    workload: str
    baseline: str = "FCFS"
    """The system it is measured against."""
    paper: str
    ours: str
    reproduced: bool
    criterion: str
    """The condition under which it counts as reproduced."""
    pre_set: bool = True
    """Whether the criterion, and what it is applied to, stood before our figure was seen."""
    note: str = ""
    """Conditions to know; the reason, where it is not reproduced."""

    @property
    def settled(self) -> str:
        """Whether the criterion stood beforehand, in words."""
        return "set beforehand" if self.pre_set else "settled with figures at hand"


def run(config: ReproduceConfig) -> None:
    """Run a paper's experiments in virtual time and print its figures beside ours.

    Examples:
      python -m scheduler_adapters reproduce slai --json
      python -m scheduler_adapters reproduce pars --scored run/test.parquet \\
          --scores bundle:run/bundle

    Hardware differs, so a row counts as reproduced by a criterion of its own, such as an order of
    systems or a band; the row says whether that stood before our figures were seen.
    """
    module = importlib.import_module(f"scheduler_adapters.papers.{config.paper}")
    rows: list[PaperFigure] = module.figures(config)
    more = module.sections(config) if hasattr(module, "sections") else []
    page = write_page(config, module.__doc__ or "", rows, more)
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
