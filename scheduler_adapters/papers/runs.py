"""Runs: settings of a reproduction, and a cache of simulated runs with their means over seeds."""

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from lengthwise.command_line.options import POSITIONAL
from lengthwise.errors import ConfigError, DataError, at_least, require
from scheduler_adapters.reporting.latency_tables import with_interval
from scheduler_adapters.workload.data_folder import data_file

log = logging.getLogger(__name__)
T = TypeVar("T")

PAPERS: Final = {
    "pars": "ParsExperiment",
    "slai": "SlaiExperiment",
    "rad": "RadExperiment",
    "pascal": "PascalExperiment",
    "phasor": "PhasorExperiment",
}
"""Class of the experiment by paper; the module and its TOML file have the paper's name."""
MODELS: Final = ("qwen2.5-7b", "llama-3-8b")
"""Models of the Phasor paper."""


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
    """Source of the scores of --scored: trace (its column score), or bundle:PATH or
    service:HOST:PORT, which score its column prompt."""
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
        for name, value, default, reader in (
            ("model", repr(self.model), repr(MODELS[0]), "phasor"),
            ("scored", str(self.scored), "None", "pars"),
        ):
            if value != default and self.paper != reader:
                raise ConfigError(
                    f"{name} is {value}, which {self.paper} does not read; use it with {reader}"
                )
        if self.scored is None and self.scores != "trace":
            raise ConfigError(f"scores is {self.scores!r} but there is no trace; add --scored FILE")

    @property
    def num_seeds(self) -> int:
        """`seeds`, or the number that the paper's figures need."""
        return self.seeds or (2 if self.paper in ("slai", "rad") else 5)


class SeedValues(np.ndarray[Any, np.dtype[np.float64]]):
    """A figure of every seed, (S,). As text: its mean with the 95% interval, `mean [low, high]`."""

    def __format__(self, spec: str) -> str:
        """Format by a number such as `+.1%`, and a unit that follows the mean only."""
        if not self.ndim:
            return format(float(self), spec)
        number, unit = re.fullmatch(r"(\+?\.\d[f%])(.*)", spec).groups()  # type: ignore[union-attr]
        return with_interval(self.tolist(), f"{{:{number}}}{unit}", f"{{:{number}}}")


def seed_values(values: ArrayLike) -> SeedValues:
    """Return values whose last axis is that of the seeds."""
    return np.asarray(values, dtype=float).view(SeedValues)


class Experiment(ABC):
    """Runs of a paper's systems. Each setting is simulated once for each seed."""

    once: ClassVar[tuple[str, ...]] = ()
    """Names of further methods that are called once for each setting."""

    def __init__(self, config: ReproduceConfig, *, first_seed: int = 0) -> None:
        self.config = config
        self.seeds = range(first_seed, first_seed + config.num_seeds)
        self.run = cache(self.measure)
        for name in self.once:
            setattr(self, name, cache(getattr(self, name)))

    @abstractmethod
    def measure(self, *setting: Any, **more: Any) -> Any:
        """Simulate one setting with the keyword `seed`; returns its figures by name."""

    def values(
        self, name: str, *setting: Any, seeds: Iterable[int] | None = None, **more: Any
    ) -> SeedValues:
        """Return a figure of every seed, (S,)."""
        each = self.seeds if seeds is None else seeds
        found = [self.run(*setting, **more, seed=seed)[name] for seed in each]
        return seed_values(found)

    def mean(self, name: str, *setting: Any, **more: Any) -> float:
        """Return the mean of a figure over the seeds."""
        return float(self.values(name, *setting, **more).mean())


def recorded(file: str, read: Callable[[Path], T]) -> T | None:
    """Return a file of the data folder as `read` reads it; None, with a warning, without it."""
    try:
        return read(data_file(file))
    except (ConfigError, DataError) as error:
        _warn_once(f"lengths are drawn, not the recorded ones: {error}")
        return None


@cache
def _warn_once(text: str) -> None:
    log.warning(text)
