"""Rows: figures of a paper and ours, with their criteria, from one TOML file for each paper."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from inspect import signature
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any, Final

import numpy as np

from lengthwise.errors import DataError

_COMPARE: Final = {"at_least": ge, "at_most": le, "above": gt, "below": lt}


@dataclass(frozen=True)
class PaperFigure:
    """One figure of a paper, and ours."""

    metric: str
    workload: str
    baseline: str
    """The system it is measured against."""
    paper: str
    ours: str
    reproduced: bool
    criterion: str
    """The condition under which it counts as reproduced."""
    pre_set: bool
    """False: the criterion was settled with our figure at hand."""
    note: str
    """Further conditions; the reason, where the figure is not reproduced."""

    @property
    def settled(self) -> str:
        """Time at which the criterion was settled, in words."""
        return "set beforehand" if self.pre_set else "settled with figures at hand"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a paper; its texts are templates of what is measured.

    The bounds, numbers or templates, apply to the measured figure that `judged` names. A measured
    `holds` is the rest of the verdict.
    """

    measure: str
    """Method of the experiment."""
    metric: str
    workload: str
    baseline: str
    paper: str
    ours: str
    criterion: str
    pre_set: bool = True
    note: str = ""
    judged: str = "value"
    at_least: float | str | None = None
    at_most: float | str | None = None
    above: float | str | None = None
    below: float | str | None = None
    cases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Other values of the fields, by the measured `case`."""
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
        return {**self.arguments, **experiment.words(**self.arguments), **found.pop(""), **found}

    def figure(self, experiment: object) -> PaperFigure:
        """Measure and judge the row."""
        found = self.found(experiment)
        row = replace(self, **self.cases.get(found.get("case", ""), {}))
        texts = {
            name: str(getattr(row, name)).format_map(found)
            for name in ("metric", "workload", "baseline", "paper", "ours", "criterion", "note")
        }
        return PaperFigure(**texts, reproduced=row.is_met(found), pre_set=row.pre_set)

    def is_met(self, found: Mapping[str, Any]) -> bool:
        """Return whether the figure (a mean over seeds) is within the bounds, and `holds`."""
        bounds = [(_COMPARE[n], b) for n in _COMPARE if (b := getattr(self, n)) is not None]
        verdicts = [
            compare(np.mean(found[self.judged]), float(str(bound).format_map(found)))
            for compare, bound in bounds
        ]
        verdicts += [found["holds"]] if "holds" in found or not bounds else []
        return all(map(bool, verdicts))


@dataclass(frozen=True)
class Paper:
    """A paper's file: the conditions of the runs, and its rows."""

    conditions: str
    rows: tuple[Row, ...]


def read_paper(path: Path, experiment: type) -> Paper:
    """Read a paper's file; its methods and their arguments are those of the experiment.

    Raises:
        DataError: a key is unknown or missing, or a method does not accept its arguments.
    """
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    if unknown := table.keys() - {"conditions", "systems", "lengths", "rows"}:
        raise DataError(f"unknown keys: {', '.join(sorted(unknown))}", path=path)
    try:
        return Paper(table["conditions"], tuple(_rows(table["rows"], experiment)))
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
            for case in row.cases.values():
                replace(row, **case)
            yield row
