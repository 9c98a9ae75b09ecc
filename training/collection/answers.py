"""An append-only JSONL file that stays usable after a crash at any byte.

Each row is one write, so a killed process loses no row that it had appended; the file is synced
every few rows, so a power cut loses no more than those. An incomplete last row is dropped when the
file is opened again. One process at a time may have it open.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lengthwise.errors import ConfigError, DataError

_ROWS_PER_SYNC: Final = 32


class AnswerLog:
    """The open file: its rows so far, and appending."""

    def __init__(self, path: Path) -> None:
        """Open the file, made if absent, and drop an incomplete last row."""
        self.path = path
        self._unsynced = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written ({error.strerror}); choose another --out"
            ) from error
        try:
            self._lock()
            self.rows: list[dict[str, Any]] = self._read()
        except BaseException:
            os.close(self._file)
            raise

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row, which is in the file on return."""
        line = memoryview(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        try:
            while line:
                line = line[os.write(self._file, line) :]
            self._unsynced += 1
            if self._unsynced >= _ROWS_PER_SYNC:
                self._sync()
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be written ({error.strerror}); make room and run the same "
                "command again: it continues from here"
            ) from error
        self.rows.append(dict(row))

    def close(self) -> None:
        """Sync and close the file; an empty one is removed."""
        try:
            self._sync()
            if not self.rows:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self._file)

    def _sync(self) -> None:
        os.fsync(self._file)
        self._unsynced = 0

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"{self.path} is being written by another process; wait for it, or choose another "
                "--out"
            ) from error

    def _read(self) -> list[dict[str, Any]]:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(self._file, whole)
        return [
            _parse(line, row, self.path)
            for row, line in enumerate(content[:whole].split(b"\n")[:-1])
        ]


def _parse(line: bytes, row: int, path: Path) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise DataError("not a JSON object; delete the line", path=path, row=row)
    return parsed
