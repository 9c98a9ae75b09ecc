"""An append-only JSONL file that stays usable after a crash at any byte.

Each row is one write, and the file is synced every few rows. Opening the file drops an incomplete
last row. One process at a time may have it open.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lengthwise.errors import ConfigError, DataError, raised_as

_ROWS_PER_SYNC: Final = 32


class AnswerLog:
    """The open file: its rows so far, and appending."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = f"{path} cannot be written ({{}}); choose another --out"
        with raised_as(ConfigError, text, OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        text = f"{path} is being written by another process; wait for it, or choose another --out"
        try:
            with raised_as(ConfigError, text, BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.rows: list[dict[str, Any]] = self._read()
        except (ConfigError, DataError):
            os.close(self._file)
            raise

    def append(self, row: Mapping[str, Any]) -> None:
        line = memoryview(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        text = f"{self.path} cannot be written ({{}}); make room and run the same command again: "
        with raised_as(ConfigError, f"{text}it continues from here", OSError):
            while line:
                line = line[os.write(self._file, line) :]
            if (len(self.rows) + 1) % _ROWS_PER_SYNC == 0:
                os.fsync(self._file)
        self.rows.append(dict(row))

    def close(self) -> None:
        """Sync and close the file; an empty one is removed."""
        try:
            os.fsync(self._file)
            if not self.rows:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self._file)

    def _read(self) -> list[dict[str, Any]]:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        os.ftruncate(self._file, whole)
        rows = []
        for number, line in enumerate(content[:whole].split(b"\n")[:-1]):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise DataError("not a JSON object; delete the line", path=self.path, row=number)
            rows.append(row)
        return rows
