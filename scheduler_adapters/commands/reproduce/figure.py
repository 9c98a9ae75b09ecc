"""A figure of a paper beside ours, and the settings of the runs that measure it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from scoring_service.command_line import POSITIONAL
from scoring_service.errors import ConfigError

PAPERS: Final = ("pars", "slai", "rad")
"""Each a module of this folder with `figures(config)`; its docstring tells the conditions."""


@dataclass(frozen=True, kw_only=True)
class ReproduceConfig:
    """A paper, and the length of its runs."""

    paper: str = field(metadata=POSITIONAL)
    """pars, slai or rad."""
    seeds: int | None = None
    """Runs per point with other arrivals; figures are means over them. None: 5 for pars, whose runs
    are quick, and 2 for the others."""
    scale: float = 1.0
    """Share of the full length of each run, in (0, 1]; below 1 bands may be missed by noise."""
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
        if self.seeds is not None and self.seeds < 1:
            raise ConfigError(f"seeds is {self.seeds}; use 1 or more")
        if not 0 < self.scale <= 1:
            raise ConfigError(f"scale is {self.scale}; use a number in (0, 1]")
        if self.scored is not None and self.paper != "pars":
            raise ConfigError(
                f"scored is {self.scored}, which {self.paper} does not read; use it with pars"
            )
        if self.scored is None and self.scores != "trace":
            raise ConfigError(f"scores is {self.scores!r} but there is no trace; add --scored FILE")

    @property
    def num_seeds(self) -> int:
        """`seeds`, or as many as the paper's figures need."""
        return self.seeds or (5 if self.paper == "pars" else 2)


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
