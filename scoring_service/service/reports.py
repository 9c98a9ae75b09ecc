"""Observed response lengths: rolling quality of the served predictions, and a log to train on."""

import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lengthwise.errors import ConfigError, ScoringError, raised_as
from lengthwise.live.rank_quality import Answer, RankFigures, RankQuality


class Observation(NamedTuple):
    """One finished response."""

    target_model: str
    output_tokens: int
    score: float
    revision: str
    prompt: str = ""


class ReportLog:
    """Appends lines to a file that only this user may read. Several processes may share it.

    At half of `max_bytes` the file becomes PATH.1 and replaces the older one.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        self._path = Path(path)
        self._max_bytes = max_bytes // 2
        self._lock = threading.Lock()
        why = f"report_log {path} cannot be written ({{}}); choose another place"
        with raised_as(ConfigError, why, OSError):
            self._file = self._open()

    def append(self, lines: str) -> None:
        """Add whole lines, or none of them. Raises ScoringError if they cannot be written."""
        block = lines.encode()
        why = f"the report log {self._path} cannot be written ({{}}); make room"
        with self._lock, raised_as(ScoringError, why, OSError):
            self._rotate(len(block))
            size = os.fstat(self._file).st_size
            if os.write(self._file, block) < len(block):
                os.ftruncate(self._file, size)
                raise OSError("no room is left")

    def close(self) -> None:
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


class ReportBook:
    """Keeps the last observations per target model, and logs the observations with a prompt."""

    # The figures are computed when observations arrive, so that reading them costs nothing.
    def __init__(self, log: ReportLog | None = None) -> None:
        self._lock = threading.Lock()
        self._revision = ""
        self._windows: dict[str, RankQuality] = {}
        self.quality: Mapping[str, RankFigures] = {}
        """Rolling figures by target model; replaced with each report."""
        self._log = log

    def add(self, observations: Sequence[Observation], revision: str) -> int:
        """Record observations while `revision` is served; return how many are of that revision.

        Raises ScoringError if the log cannot be written.
        """
        current = [seen for seen in observations if seen.revision == revision]
        with self._lock:
            if revision != self._revision:
                self._revision, self._windows, self.quality = revision, {}, {}
            for name in {seen.target_model for seen in current}:
                window = self._windows.setdefault(name, RankQuality())
                of_model = (seen for seen in current if seen.target_model == name)
                window.add([Answer(seen.score, seen.output_tokens) for seen in of_model])
                self.quality = {**self.quality, name: window.figures()}
        # A line without a prompt is useless for training.
        rows = [
            {
                "prompt": seen.prompt,
                "model": seen.target_model,
                "output_tokens": seen.output_tokens,
                "score": seen.score,
                "revision": seen.revision,
            }
            for seen in observations
            if seen.prompt
        ]
        if self._log is not None and rows:
            self._log.append("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        return len(current)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
