"""Log file of reported responses, for retraining: whole lines, rotated, bounded in size."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from lengthwise.errors import ConfigError, ScoringError


class ReportLog:
    """Appends lines to a file that only this user may read.

    At half the limit the file becomes PATH.1 and replaces the older one. Several processes may
    append to one file.

    Args:
        max_bytes: size of the file and the older one together.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        self._path = Path(path)
        self._max_bytes = max_bytes // 2
        self._lock = threading.Lock()
        try:
            self._file = self._open()
        except OSError as error:
            raise ConfigError(
                f"report_log {path} cannot be written ({error.strerror}); choose another place"
            ) from error

    def append(self, lines: str) -> None:
        """Add whole lines, or none of them. Raises ScoringError if they cannot be written."""
        block = lines.encode()
        with self._lock:
            try:
                self._rotate(len(block))
                size = os.fstat(self._file).st_size
                if os.write(self._file, block) < len(block):
                    os.ftruncate(self._file, size)
                    raise OSError("no room is left")
            except OSError as error:
                raise ScoringError(
                    f"the report log {self._path} cannot be written ({error}); make room"
                ) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _rotate(self, num_bytes: int) -> None:
        """Make room for so many bytes, unless another process has done so."""
        opened = os.fstat(self._file)
        is_ours = self._path.exists() and os.path.samestat(opened, self._path.stat())
        if is_ours and opened.st_size + num_bytes <= self._max_bytes:
            return
        if is_ours and opened.st_size > 0:
            self._path.replace(f"{self._path}.1")
        os.close(self._file)
        self._file = self._open()
