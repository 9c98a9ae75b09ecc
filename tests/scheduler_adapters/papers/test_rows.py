"""Rows of a paper: read from its file, measured, and judged by the bounds that stand there."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from lengthwise.errors import DataError
from scheduler_adapters.papers.rows import Row, read_paper
from scheduler_adapters.papers.runs import PAPERS


class Doubled:
    """An experiment that doubles a number."""

    def twice(self, number: float) -> dict[str, Any]:
        return {"value": 2 * number, "case": "large" if number > 10 else ""}

    def words(self, **arguments: Any) -> dict[str, Any]:
        return {"said": "one seed"}


TEXT = """
conditions = "One seed."
[[rows]]
measure = "twice"
metric = "m"
workload = "{number}, 2"
baseline = "FCFS"
ours = "{value:.1f}x"
criterion = "2x or more"
at_least = 2
each = [{ number = 1, paper = "2x" }, { number = 0.5, paper = "3x", pre_set = false }]
[rows.cases.large]
note = "large"
"""


def test_a_row_has_further_measurements_by_name():
    texts = dict.fromkeys(("metric", "workload", "baseline", "paper", "criterion"), "")
    also = {"more": {"number": 3}, "other": {"measure": "twice", "number": 5}}
    ours = "{value}, {more[value]}, {other[value]}, {said}"
    row = Row(measure="twice", arguments={"number": 1}, also=also, ours=ours, at_most=2, **texts)
    assert row.figure(Doubled()).ours == "2, 6, 10, one seed"


def read(tmp_path: Path, text: str):
    path = tmp_path / "paper.toml"
    path.write_text(text)
    return read_paper(path, Doubled)


def test_a_row_stands_for_each_entry_and_says_when_its_criterion_was_settled(tmp_path):
    paper = read(tmp_path, TEXT.replace("0.5", "11"))
    made, late = (row.figure(Doubled()) for row in paper.rows)
    assert (made.metric, made.workload, made.baseline) == ("m", "1, 2", "FCFS")
    assert (made.paper, made.ours, made.reproduced) == ("2x", "2.0x", True)
    assert (made.settled, made.note) == ("set beforehand", "")
    assert (late.paper, late.settled, late.note) == ("3x", "settled with figures at hand", "large")


@pytest.mark.parametrize(
    ("bounds", "met"),
    [
        ({"at_least": 2}, [False, True, True]),
        ({"at_most": 2}, [True, True, False]),
        ({"above": 2}, [False, False, True]),
        ({"below": 2}, [True, False, False]),
        ({"at_least": 1.5, "at_most": 2}, [False, True, False]),
        ({"above": "{other[value]}"}, [False, False, True]),
    ],
)
def test_a_bound_holds_up_to_its_edge(bounds, met):
    texts = dict.fromkeys(("metric", "workload", "baseline", "paper", "ours", "criterion"), "")
    row = Row(measure="twice", **texts, **bounds)
    assert [row.is_met({"value": value, "other": {"value": 2}}) for value in (1, 2, 3)] == met
    assert not row.is_met({"value": 2, "other": {"value": 2}, "holds": False})
    assert not row.is_met({"value": float("nan"), "other": {"value": 2}})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("at_least = 2", "at_least = 2\ncriterium = 1"),
        ("number = 1,", "amount = 1,"),
        ("at_least = 2", "also.more = { amount = 1 }"),
        ('metric = "m"', ""),
        ('"twice"', '"thrice"'),
        ('note = "large"', 'nota = "large"'),
        ('conditions = "One seed."', ""),
        ("[[rows]]", "figure = []\n[[rows]]"),
    ],
)
def test_a_wrong_key_of_a_paper_is_an_error(before, after, tmp_path):
    with pytest.raises(DataError, match=r"paper\.toml"):
        read(tmp_path, TEXT.replace(before, after))


@pytest.mark.parametrize("paper", PAPERS)
def test_the_files_of_the_papers_fit_their_experiments(paper):
    module = importlib.import_module(f"scheduler_adapters.papers.{paper}")
    found = read_paper(Path(module.__file__).with_suffix(".toml"), getattr(module, PAPERS[paper]))
    assert len(found.rows) > 5
    assert found.conditions
