"""Observed response lengths: rolling quality of the served predictions, and a log to train on."""

import json
import math
import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lengthwise.agreement import tau_b
from lengthwise.errors import ConfigError, ScoringError, raised_as

WINDOW: Final = 1000
"""Observations in the rolling figures; the standard error of tau_b is then about .02."""
_FEWEST: Final = 20


class Observation(NamedTuple):
    """One finished response."""

    target_model: str
    output_tokens: int
    score: float
    revision: str
    prompt: str = ""


class LiveQuality(NamedTuple):
    """Rolling quality of the served revision's predictions for one target model."""

    num_observed: int
    tau_b: float | None
    """Kendall's tau-b of scores and lengths; None below 20 observations or without variation."""


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
        self._windows: dict[str, deque[tuple[float, int]]] = {}
        """Score and length of the last observations, by target model."""
        self.quality: Mapping[str, LiveQuality] = {}
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
            for seen in current:
                window = self._windows.setdefault(seen.target_model, deque(maxlen=WINDOW))
                window.append((seen.score, seen.output_tokens))
            self.quality = dict(self.quality) | {
                name: _quality(self._windows[name])
                for name in {seen.target_model for seen in current}
            }
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


def _quality(window: Sequence[tuple[float, int]]) -> LiveQuality:
    tau = tau_b(*zip(*window, strict=True)) if len(window) >= _FEWEST else math.nan
    return LiveQuality(len(window), None if math.isnan(tau) else tau)
