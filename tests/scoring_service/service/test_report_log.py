"""Whole lines, a limit in bytes, and a full disk that leaves nothing half-written."""

from __future__ import annotations

import errno
import os

import pytest

from lengthwise.errors import ConfigError, ScoringError
from scoring_service.service.report_log import ReportLog


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def test_a_log_that_cannot_be_written_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="report_log"):
        ReportLog(str(tmp_path / "nowhere" / "log.jsonl"), 1000)


def test_the_log_and_its_predecessor_stay_within_the_limit(path):
    log = ReportLog(str(path), 1000)
    for number in range(100):
        log.append(f"{number:039}\n")
    assert path.stat().st_size + path.with_name("log.jsonl.1").stat().st_size <= 1000
    assert path.read_text().splitlines()[-1] == f"{99:039}"
    assert sorted(p.name for p in path.parent.iterdir()) == ["log.jsonl", "log.jsonl.1"]


def test_only_its_user_may_read_it(path):
    ReportLog(str(path), 1000).append("a\n")
    assert path.stat().st_mode & 0o077 == 0


def test_two_processes_append_to_one_file_across_a_rotation(path):
    one, other = ReportLog(str(path), 100), ReportLog(str(path), 100)
    other.append("o" * 30 + "\n")
    one.append("a" * 30 + "\n")
    other.append("b\n")
    assert path.read_text() == "a" * 30 + "\nb\n"


def test_a_file_that_was_moved_away_is_made_again(path):
    log = ReportLog(str(path), 1000)
    log.append("old\n")
    path.rename(path.with_name("taken"))
    log.append("new\n")
    assert path.read_text() == "new\n"


@pytest.mark.parametrize("written", [0, 3])
def test_a_full_disk_is_an_error_and_leaves_no_half_line(path, monkeypatch, written):
    log = ReportLog(str(path), 1000)
    log.append("whole\n")
    real = os.write

    def full(file, block):
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, block[:written])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(ScoringError, match=r"cannot be written .*make room"):
            log.append("half a line\n")
    log.append("next\n")
    assert path.read_text() == "whole\nnext\n"
