"""Rows: figures of a paper and ours, with their criteria, from one TOML file for each paper."""

import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import signature
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any, Final

import numpy as np

from lengthwise.errors import DataError
from scheduler_adapters.reporting.latency_tables import interval

_COMPARE: Final = {"at_least": ge, "at_most": le, "above": gt, "below": lt}
VERDICTS: Final = ("figure", "direction", "no", "open")
KINDS: Final = ("paper", "fitted", "own")


@dataclass(frozen=True)
class PaperFigure:
    """One figure of a paper, and ours."""

    metric: str
    workload: str
    baseline: str
    """The system it is measured against."""
    paper: str
    ours: str
    verdict: str
    """figure: the criterion holds, and our 95% interval holds the paper's number, or our mean is
    within the band; direction: the criterion holds; no: it does not; open: both."""
    criterion: str
    band: str
    """The paper's numbers and the band around them, in words; empty for a direction alone."""
    kind: str
    """paper; fitted: a criterion or a choice was settled with our figure at hand; own: a comparison
    that is not the paper's."""
    note: str
    ratios: Sequence[tuple[float, float, float]]
    """Ours / the paper's, of each of its numbers: mean and 95% interval."""


def counts(figures: Iterable[PaperFigure]) -> dict[str, dict[str, int]]:
    """Return the number of rows by kind and verdict."""
    found = Counter((one.kind, one.verdict) for one in figures)
    return {kind: {one: found[kind, one] for one in VERDICTS} for kind in KINDS}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a paper; its texts are templates of what is measured.

    The bounds, numbers or templates, apply to the whole 95% interval of the measured figure that
    `judged` names. A measured `holds` is the rest of the criterion.
    """

    measure: str
    """Method of the experiment."""
    metric: str
    workload: str
    baseline: str
    paper: str
    ours: str
    criterion: str = ""
    kind: str = "paper"
    numbers: Sequence[float] = ()
    """The paper's numbers; a row without a criterion is `figure` or `no`."""
    band: float = 0.0
    """Half width of the band around each number, as a share of the number."""
    matched: str = ""
    """Measured values beside `numbers`; empty: those of `judged`."""
    note: str = ""
    judged: str = "value"
    at_least: float | str | None = None
    at_most: float | str | None = None
    above: float | str | None = None
    below: float | str | None = None
    needs: str = ""
    """Setting without which the row is left out."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the method: the keys that are no fields."""
    also: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further measurements by name: other arguments of the method, or a method with all of its."""

    def is_wanted(self, config: object) -> bool:
        """Return whether the configuration has the setting that the row needs."""
        return not self.needs or bool(getattr(config, self.needs))

    def calls(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Return method and arguments of each measurement; that of the row has no name."""
        own = {"measure": self.measure, **self.arguments}
        each = {"": own} | {
            name: {**({} if "measure" in changed else own), **changed}
            for name, changed in self.also.items()
        }
        return {name: (call.pop("measure"), call) for name, call in each.items()}

    def found(self, experiment: Any) -> dict[str, Any]:
        """Return what is measured, and the arguments, by the names of the templates."""
        found = {
            name: getattr(experiment, measure)(**arguments)
            for name, (measure, arguments) in self.calls().items()
        }
        words = {"numbers": self.numbers, **experiment.words(**self.arguments)}
        return {**self.arguments, **words, **found.pop(""), **found}

    def figure(self, experiment: object) -> PaperFigure:
        """Measure and judge the row."""
        found = self.found(experiment)
        texts = {
            name: str(getattr(self, name)).format_map(found)
            for name in ("metric", "workload", "baseline", "paper", "ours", "criterion", "note")
        }
        numbers = ", ".join(f"{number:g}" for number in self.numbers)
        band = f"within {self.band:.0%} of {numbers}" if numbers else ""
        own = {"verdict": self.verdict(found), "band": band, "kind": self.kind}
        ratios = [(a / n, b / n, c / n) for n, a, b, c in self._matched(found)]
        return PaperFigure(**texts, **own, ratios=ratios)

    def verdict(self, found: Mapping[str, Any]) -> str:
        """Return the verdict on what is measured."""
        bounds = [(_COMPARE[n], b) for n in _COMPARE if (b := getattr(self, n)) is not None]
        ends = interval(np.atleast_1d(found[self.judged]).tolist()) if bounds else ()
        checks = [
            {bool(compare(end, float(str(bound).format_map(found)))) for end in ends}
            for compare, bound in bounds
        ]
        checks += [{bool(found[name])} for name in ("holds",) if name in found]
        if {False} in checks or not (checks or self._is_near(found)):
            return "no"
        if {True, False} in checks:
            return "open"
        return "figure" if self.numbers and self._is_near(found) else "direction"

    def _is_near(self, found: Mapping[str, Any]) -> bool:
        """Return whether our interval holds the paper's number, or our mean is in its band."""
        near = [
            low <= paper <= high or abs(mean - paper) <= self.band * abs(paper)
            for paper, mean, low, high in self._matched(found)
        ]
        return all(near)

    def _matched(self, found: Mapping[str, Any]) -> Iterator[tuple[float, float, float, float]]:
        """Yield each of the paper's numbers with the mean and the interval of ours."""
        values = found[self.matched or self.judged] if self.numbers else []
        each = values if len(self.numbers) > 1 else [values]
        for paper, own in zip(self.numbers, each, strict=False):
            yield paper, float(np.mean(own)), *interval(np.atleast_1d(own).tolist())


@dataclass(frozen=True)
class Paper:
    """A paper's file: the conditions of the runs, and its rows."""

    conditions: str
    rows: tuple[Row, ...]
    criteria: str
    """The commit that last changed the file of the rows, or why there is none."""


def read_paper(path: Path, experiment: type) -> Paper:
    """Read a paper's file; its methods and their arguments are those of the experiment.

    Raises:
        DataError: a key is unknown or missing, or a method does not accept its arguments.
    """
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    if unknown := table.keys() - {"conditions", "first_seed", "systems", "lengths", "rows"}:
        raise DataError(f"unknown keys: {', '.join(sorted(unknown))}", path=path)
    try:
        rows = tuple(_rows(table["rows"], experiment))
        return Paper(table["conditions"], rows, last_commit(path))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"wrong entry: {error}", path=path) from error


def _rows(tables: list[dict[str, Any]], experiment: type) -> Iterator[Row]:
    known = {one.name for one in fields(Row)} - {"arguments"}
    for table in tables:
        for own in table.get("each", [{}]):
            whole = {name: value for name, value in table.items() if name != "each"} | own
            arguments = {name: value for name, value in whole.items() if name not in known}
            row = Row(**{name: whole[name] for name in known & whole.keys()}, arguments=arguments)
            for measure, given in row.calls().values():
                signature(getattr(experiment, measure)).bind(None, **given)
            if row.kind not in KINDS:
                raise KeyError(row.kind)
            yield row


def last_commit(path: Path) -> str:
    """Return the commit that last changed a file, with its date, or why there is none."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(path.parent), *words, "--", path.name]
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return found.stdout.strip()

    try:
        if git("status", "--porcelain"):
            return "uncommitted"
        return git("log", "-1", "--format=commit %h of %cs") or "uncommitted"
    except (OSError, subprocess.SubprocessError):
        return "unknown: no git checkout"
