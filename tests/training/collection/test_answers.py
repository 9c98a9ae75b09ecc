"""The file of rows: whole rows survive any cut, and one writer at a time has it."""

import errno
import json
from contextlib import closing
from pathlib import Path

import pytest

from lengthwise.errors import ConfigError
from training.collection.answers import AnswerLog

ROWS = [{"prompt": f"é{n}", "n": n} for n in range(3)]


def write(path: Path) -> bytes:
    with closing(AnswerLog(path)) as log:
        for row in ROWS:
            log.append(row)
    return path.read_bytes()


def test_a_file_cut_at_any_byte_keeps_its_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    content = write(path)
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with closing(AnswerLog(path)) as log:
            assert log.rows == ROWS[: content[:size].count(b"\n")]
            log.append({"n": 9})
        assert [json.loads(line) for line in path.read_bytes().splitlines()][-1] == {"n": 9}


def test_a_second_writer_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with closing(AnswerLog(path)), pytest.raises(ConfigError, match="written by another process"):
        AnswerLog(path)
    assert write(path)


def test_a_file_without_a_row_is_removed(tmp_path: Path) -> None:
    AnswerLog(tmp_path / "rows.jsonl").close()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_tells_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = AnswerLog(tmp_path / "rows.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr("training.collection.answers.os.write", write)
        with pytest.raises(ConfigError, match="it continues from here"):
            log.append(ROWS[0])
    log.close()
