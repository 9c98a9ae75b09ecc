"""The rows of a paper that an experiment measures, made up or small."""

import inspect
from pathlib import Path

import pytest

from benchmarks.papers.rows import PaperFigure, read_paper
from benchmarks.papers.runs import Experiment


@pytest.fixture
def rows_of():
    """Rows of an experiment by their methods or metrics; all rows without one."""

    def measured(experiment: Experiment, *measures: str) -> list[PaperFigure]:
        kind = type(experiment)
        paper = read_paper(Path(inspect.getfile(kind)).with_suffix(".toml"), kind)
        wanted = [row for row in paper.rows if row.is_wanted(experiment.config)]
        known = [row for row in wanted if {row.measure, row.metric} & {*measures} or not measures]
        return [row.figure(experiment) for row in known]

    return measured
