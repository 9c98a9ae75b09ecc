"""Rows of a paper: read from its file, measured, and judged by the bounds that stand there."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers.rows import Row, counts, last_commit, read_paper
from benchmarks.papers.runs import SeedValues
from lengthwise.errors import DataError


class Doubled:
    """An experiment that doubles a number."""

    def twice(self, number: float) -> dict[str, Any]:
        return {"value": 2 * number}

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
each = [{ number = 1, paper = "2x" }, { number = 11, paper = "3x", kind = "fitted" }]
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


def test_each_entry_has_a_row_and_fitted_rows_are_counted_apart(tmp_path):
    paper = read(tmp_path, TEXT)
    made, late = (row.figure(Doubled()) for row in paper.rows)
    assert (made.metric, made.workload, made.baseline) == ("m", "1, 2", "FCFS")
    assert (made.paper, made.ours, made.verdict, made.note) == ("2x", "2.0x", "direction", "")
    assert (late.paper, late.kind) == ("3x", "fitted")
    found = counts([made, late])
    assert found["paper"] == {"figure": 0, "direction": 1, "no": 0, "open": 0}
    assert sum(found["fitted"].values()) == 1
    assert paper.criteria == "unknown: no git checkout"


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
    verdicts = [row.verdict({"value": value, "other": {"value": 2}}) for value in (1, 2, 3)]
    assert verdicts == ["direction" if one else "no" for one in met]
    assert row.verdict({"value": 2, "other": {"value": 2}, "holds": False}) == "no"
    assert row.verdict({"value": float("nan"), "other": {"value": 2}}) == "no"


@pytest.mark.parametrize(
    ("values", "changes", "verdict"),
    [
        ([2.0, 2.2], {"above": 1}, "open"),  # the interval is [.8, 3.4]
        ([2.1, 2.1], {"above": 1}, "figure"),  # 5% above the paper's 2
        ([2.3, 2.3], {"above": 1}, "direction"),
        ([2.2, 2.3], {"above": 1}, "figure"),  # [1.6, 2.9] holds the paper's 2
        ([2.1, 2.1], {}, "figure"),
        ([2.3, 2.3], {}, "no"),
        ([2.1, 2.1], {"numbers": (2, 3), "matched": "both"}, "figure"),
        ([2.1, 2.1], {"numbers": (2, 4), "matched": "both"}, "no"),
    ],
)
def test_a_figure_is_near_and_a_direction_holds_in_all_intervals(values, changes, verdict):
    texts = dict.fromkeys(("metric", "workload", "baseline", "paper", "ours"), "")
    row = Row(measure="twice", **texts, **{"numbers": (2,), "band": 0.1} | changes)
    value = SeedValues.of(values)
    assert row.verdict({"value": value, "both": [value, value + 1]}) == verdict


def test_criteria_name_the_last_commit_of_their_file(tmp_path):
    def git(*words: str) -> str:
        own = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e", *words]
        return subprocess.run(own, check=True, capture_output=True, text=True).stdout.strip()

    path = tmp_path / "paper.toml"
    path.write_text(TEXT)
    git("init", "--quiet")
    assert last_commit(path) == "uncommitted"
    git("add", ".")
    git("commit", "--quiet", "-m", "criteria")
    git("commit", "--quiet", "--allow-empty", "-m", "results")
    assert last_commit(path).startswith(f"commit {git('rev-parse', '--short', 'HEAD~1')} of 20")
    path.write_text(TEXT + "\n")
    assert last_commit(path) == "uncommitted"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("at_least = 2", "at_least = 2\ncriterium = 1"),
        ("number = 1,", "amount = 1,"),
        ("at_least = 2", "also.more = { amount = 1 }"),
        ('metric = "m"', ""),
        ('"twice"', '"thrice"'),
        ('conditions = "One seed."', ""),
        ("[[rows]]", "figure = []\n[[rows]]"),
        ('kind = "fitted"', 'kind = "best"'),
    ],
)
def test_a_wrong_key_of_a_paper_is_an_error(before, after, tmp_path):
    with pytest.raises(DataError, match=r"paper\.toml"):
        read(tmp_path, TEXT.replace(before, after))
