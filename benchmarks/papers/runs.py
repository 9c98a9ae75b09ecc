"""Runs: settings of a reproduction, and a cache of simulated runs with their means over seeds."""

import json
import logging
import os
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from lengthwise.command_line.options import POSITIONAL
from lengthwise.errors import ConfigError, DataError, require
from lengthwise.settings import Count, Range, settings
from lengthwise.strict_json import parsed, to_json
from scheduler_adapters.policy import Policy, load_policy
from scheduler_adapters.reporting.latency_tables import with_interval
from scheduler_adapters.simulator.load_search import highest_load
from scheduler_adapters.workload.data_folder import data_file

log = logging.getLogger(__name__)
_warn_once: Final = cache(log.warning)
T = TypeVar("T")

PAPERS: Final = ("pars", "slai", "rad", "pascal", "phasor")
"""Each has a module and a TOML file of its name; the module's class is `NameExperiment`."""
FIRST_SEED: Final = 300
"""First seed of the rows; choices and criteria were settled on seeds below."""
MODELS: Final = ("qwen2.5-7b", "llama-3-8b")
"""Models of the Phasor paper."""


@settings
class ReproduceConfig:
    """A paper, and the length of its runs."""

    paper: str = field(metadata=POSITIONAL)
    """pars, slai, rad, pascal or phasor."""
    seeds: Count = 5
    """Runs per point with other arrivals; figures are means over them."""
    scale: Annotated[float, Range(least=0.005, most=1)] = 1.0
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
    resume: Path | None = None
    """File of JSON lines with the result of each run, from which the same command continues after
    an interruption. Delete it when the code changes."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        if self.paper not in PAPERS:
            raise ConfigError(f"no paper named {self.paper!r}; use one of {', '.join(PAPERS)}")
        require("model", repr(self.model), self.model in MODELS, "one of " + ", ".join(MODELS))
        changed = {"model": self.model != MODELS[0], "scored": self.scored is not None}
        for name, reader in (("model", "phasor"), ("scored", "pars")):
            if changed[name] and self.paper != reader:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}, which {self.paper} does not read; "
                    f"use it with {reader}"
                )
        if self.scored is None and self.scores != "trace":
            raise ConfigError(f"scores is {self.scores!r} but there is no trace; add --scored FILE")


class SeedValues(np.ndarray[Any, np.dtype[np.float64]]):
    """A figure of every seed, (S,). As text: its mean with the 95% interval, `mean [low, high]`."""

    @classmethod
    def of(cls, values: ArrayLike) -> Self:
        """Return values whose last axis is that of the seeds."""
        return np.asarray(values, dtype=float).view(cls)

    @property
    def average(self) -> float:
        """Mean over the seeds."""
        return float(self.mean())

    def __format__(self, spec: str) -> str:
        """Format by a number such as `+.1%`, or `.1f` and a unit, which follows the mean only.

        With the unit % the values are percentages.
        """
        if not self.ndim:
            return format(float(self), spec)
        number, unit = re.fullmatch(r"(\+?\.\d[f%])(.*)", spec).groups()  # type: ignore[union-attr]
        values = (100 if unit == "%" else 1) * np.asarray(self)
        return with_interval(values.tolist(), f"{{:{number}}}{unit}", f"{{:{number}}}")


class KeptRuns:
    """Results of a command's runs, in `found`; its file has the command, then a line for each run.

    Without a path there is no file. A damaged last line, as an interruption leaves it, is dropped.

    Raises:
        DataError: the file is of another command, is damaged further up, or cannot be used.
    """

    def __init__(self, path: Path | None, command: Mapping[str, Any]) -> None:
        self.path, self.found = path, dict[str, Any]()
        if path is None:
            return
        first = json.dumps(command, default=str).encode() + b"\n"
        try:
            with path.open("ab") as file:
                file.write(b"" if file.tell() else first)
            lines = path.read_bytes().splitlines(keepends=True)
            if lines[0] != first:
                raise ValueError(f"its first line is not {first.decode().strip()}")
            for number, line in enumerate(lines[1:], 2):
                try:
                    *run, result = parsed(line[:-1].decode())  # fails where its end is missing
                    self.found[to_json(run)] = result
                except (ValueError, TypeError):
                    if number < len(lines):
                        raise ValueError(f"line {number} is damaged") from None
                    os.truncate(path, path.stat().st_size - len(line))
        except (OSError, ValueError) as error:
            raise DataError(
                f"no kept runs ({error}); use a new file by --resume", path=path
            ) from error

    def keep(self, run: str, result: Any) -> None:
        """Add the result of a run, whose name and arguments are a list in JSON."""
        self.found[run] = result
        if self.path:
            with self.path.open("a", encoding="utf-8") as file:
                # Not strict: a figure may be undefined, and stays NaN.
                file.write(f"{run[:-1]}, {json.dumps(result)}]\n")


def kept(method: Callable[..., T]) -> Callable[..., T]:
    """Return a method that runs once for equal arguments; its results are kept in `resume`."""

    def found(self: "Experiment", *arguments: Any, **setting: Any) -> Any:
        run = to_json([method.__name__, arguments, setting])
        if run not in self.known.found:
            self.known.keep(run, method(self, *arguments, **setting))
        return self.known.found[run]

    return found


class Experiment(ABC):
    """Runs of a paper's systems, and the comparisons of systems that rows are made of.

    Each setting is simulated once for each seed.
    """

    def __init__(self, config: ReproduceConfig) -> None:
        self.config = config
        file = paper_file(config.paper)
        self.systems: Mapping[str, Any] = file.get("systems", {})
        self.seeds = range(first := file.get("first_seed", FIRST_SEED), first + config.seeds)
        own = asdict(replace(config, out=None, json=False, resume=None))
        self.known = KeptRuns(config.resume, {"command": "reproduce", **own})

    def policy(self, system: str) -> Policy:
        """Return a fresh policy of a system in the paper's file."""
        own = self.systems[system]
        return load_policy(own["policy"], **own.get("settings", {}))

    @abstractmethod
    def run(self, *system: Any, **setting: Any) -> Any:
        """Simulate a system in a setting, with the keyword `seed`; returns its figures by name."""

    def words(self, *_: Any, **arguments: Any) -> dict[str, Any]:
        """Return further values of a row's templates, from the arguments of its method."""
        return {}

    def values(
        self,
        figure: str,
        system: str,
        *,
        most_seeds: int | None = None,
        seeds: tuple[int, int] | None = None,
        **setting: Any,
    ) -> SeedValues:
        """Return a figure of every seed, (S,).

        Args:
            most_seeds: largest number of seeds, of those of the configuration.
            seeds: the first seed and the end, in place of those of the configuration.
        """
        each = self.seeds[:most_seeds] if seeds is None else range(*seeds)
        setting = dict(sorted(setting.items()))
        return SeedValues.of([self.run(system, **setting, seed=seed)[figure] for seed in each])

    def mean(self, figure: str, system: str, **setting: Any) -> float:
        """Return the mean of a figure over the seeds."""
        return self.values(figure, system, **setting).average

    def rate_at(
        self, most: float, figure: str, system: str, search: Mapping[str, Any], **setting: Any
    ) -> float:
        """Return the highest rate at which the mean of a figure is `most` at most, or the lowest.

        `search` has `low`, `high` and `tolerance` of the rate.
        """

        def is_met(rate: float) -> bool:
            return self.mean(figure, system, rate=round(rate, 3), **setting) <= most

        return round(highest_load(is_met, **search) or search["low"], 3)

    def sweep(
        self, figure: str, system: str, *, rates: Sequence[float] = (), **setting: Any
    ) -> SeedValues:
        """Return a figure by rate and seed, (R, S); (1, S) without rates."""
        each: list[dict[str, Any]] = [{"rate": rate} for rate in rates] or [{}]
        return SeedValues.of([self.values(figure, system, **setting, **one) for one in each])

    def level(self, figure: str, system: str, **setting: Any) -> dict[str, Any]:
        """Return a figure of one system by seed: `value`."""
        return {"value": self.values(figure, system, **setting)}

    def pair(self, figure: str, base: str, system: str, **setting: Any) -> dict[str, Any]:
        """Compare a figure of a system with that of a baseline.

        Returns:
            by seed, means over the rates: `theirs`, `ours`, `ratio` (ours / theirs), `change`
            (`ratio` - 1), and `shift` or `value`, the change of the mean (delta method).
            `times` is the mean of theirs / the mean of ours, inf where ours is 0.
        """
        before, after = (self.sweep(figure, one, **setting) for one in (base, system))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (after / before).mean(axis=0)
            whole = after.average / (before.average or np.nan)
        shift = (after - whole * before).mean(axis=0) / (before.average or np.nan) + whole - 1
        return {
            "theirs": before.mean(axis=0),
            "ours": after.mean(axis=0),
            "ratio": ratio,
            "change": ratio - 1,
            "shift": shift,
            "value": shift,
            "times": before.average / after.average if after.average else np.inf,
        }

    def against(self, figure: str, systems: Sequence[str], **setting: Any) -> dict[str, Any]:
        """Compare the first system with each other one.

        Returns:
            `means` of all; `changes` of the first one against each other one, paired by seed;
            `value`, the first one / the least other one, by seed; `levels` of all, by seed.
        """
        levels = [self.sweep(figure, system, **setting).mean(axis=0) for system in systems]
        changes = [self.pair(figure, one, systems[0], **setting)["change"] for one in systems[1:]]
        means = [level.average for level in levels]
        value = levels[0] / np.min(levels[1:], axis=0)
        return {"levels": levels, "means": means, "changes": changes, "value": value}

    def in_order(self, figure: str, systems: Sequence[str], **setting: Any) -> dict[str, Any]:
        """Return `against`; `value` is by seed the quotient of the neighbours least in order."""
        found = self.against(figure, systems, **setting)
        each = [low / high for low, high in pairwise(found["levels"])]
        return found | {"value": max(each, key=np.mean)}


@cache
def paper_file(paper: str) -> dict[str, Any]:
    """Return the tables of a paper's TOML file."""
    return tomllib.loads(Path(__file__).with_name(f"{paper}.toml").read_text(encoding="utf-8"))


def recorded(file: str, read: Callable[[Path], T]) -> T | None:
    """Return a file of the data folder as `read` reads it; None, with a warning, without it."""
    try:
        return read(data_file(file))
    except (ConfigError, DataError) as error:
        _warn_once(f"lengths are drawn, not the recorded ones: {error}")
        return None
