"""Progress: a line on a terminal, with the share of what is done, and silence elsewhere."""

import pytest

from lengthwise import progress as progress_module
from lengthwise.progress import Progress


class Clock:
    """Stands still until it is moved."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    return clock


def test_without_a_terminal_short_work_is_silent(capsys):
    with Progress(1) as progress:
        progress.look(1.0, 1, 2)
        progress.step("fcfs")
    assert capsys.readouterr().err == ""


def test_without_a_terminal_every_tenth_is_a_line(capsys, clock):
    with Progress(2) as progress:
        progress.begin("pars")
        for row in range(1000):
            clock.now_s = row / 20
            progress.look(row, row, 1000)
        progress.step("pars")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "10% after 10 s  0/2  pars: virtual time 202 s, 202/1,000 requests"
    assert [line.partition("%")[0] for line in lines] == ["10", "20", "30", "40", "50"]


@pytest.mark.parametrize(("is_partial_shown", "num_filled"), [(True, 15), (False, 10)])
def test_the_bar_counts_runs_and_on_request_the_share_of_a_run(
    capsys, monkeypatch, clock, is_partial_shown, num_filled
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress(2, is_partial_shown=is_partial_shown) as progress:
        progress.step("fcfs")
        progress.begin("pars")
        clock.now_s = 7.0
        progress.look(1234.0, 500, 1000)
    first, second = capsys.readouterr().err.strip("\r\n").split("\r")
    assert first.rstrip() == f"{'#' * 10:-<20} 0 s  1/2  fcfs"
    assert second.rstrip() == (
        f"{'#' * num_filled:-<20} 7 s  1/2  pars: virtual time 1,234 s, 500/1,000 requests"
    )


def test_looks_that_follow_at_once_are_not_shown(capsys, monkeypatch, clock):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress(1) as progress:
        for row in range(100):
            clock.now_s = row / 100
            progress.look(0.0, row, 100)
    assert capsys.readouterr().err.count("\r") == 5  # every 0.2 s of one second
