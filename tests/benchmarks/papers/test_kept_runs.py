"""Kept runs: their file is data only, is of one command, and loses a damaged last line."""

import pickle

import pytest

from benchmarks.papers.kept_runs import KeptRuns
from lengthwise.errors import DataError

FIRST, SECOND = '["measure", ["FCFS"], {"seed": 0}]', '["measure", ["FCFS"], {"seed": 1}]'
FOUND = {FIRST: {"ttft_s": 0.1, "blocked": float("inf")}, SECOND: [1, 2]}


@pytest.fixture
def path(tmp_path):
    runs = KeptRuns(tmp_path / "runs", {"seeds": 3})
    for run, result in FOUND.items():
        runs.keep(run, result)
    return runs.path


@pytest.mark.parametrize("cut", [0, 1, 2, 9])
def test_results_are_read_as_kept_but_for_a_damaged_last_line(path, cut):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])
    runs = KeptRuns(path, {"seeds": 3})
    assert runs.found == ({FIRST: FOUND[FIRST]} if cut else FOUND)
    if cut:
        runs.keep(SECOND, FOUND[SECOND])
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (pickle.dumps(FOUND), "its first line is not"),
        (b'{"seeds": 5}\n', 'its first line is not {"seeds": 3}'),
        (b'{"seeds": 3}\n[]\n[1, 2]\n', "line 2 is damaged"),
        (b'{"seeds": 3}\n\xff\n[1, 2]\n', "line 2 is damaged"),
    ],
)
def test_another_file_is_refused_and_stays_as_it_is(path, content, complaint):
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"no kept runs \({complaint}.*; use a new file"):
        KeptRuns(path, {"seeds": 3})
    assert path.read_bytes() == content
