"""Rows: a figure of a paper, ours, and the criterion that compares them."""

from dataclasses import dataclass


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


def row(
    what: str,
    paper: str,
    ours: str,
    reproduced: bool,
    criterion: str,
    *,
    pre_set: bool = True,
    note: str = "",
) -> PaperFigure:
    """Return a row; `what` is `metric | workload | system it is measured against`."""
    metric, workload, baseline = what.split(" | ")
    return PaperFigure(
        metric, workload, baseline, paper, ours, bool(reproduced), criterion, pre_set, note
    )
