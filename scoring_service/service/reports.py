"""Quality of served predictions: observed response lengths, rank agreement, coverage."""

import json
import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lengthwise.agreement import tau_b
from lengthwise.calibration import LengthCurve
from scoring_service.service.report_log import ReportLog

WINDOW: Final = 1000
"""Observations that the rolling figures look back on; one standard error of tau_b is about .02."""
_FEWEST: Final = 20


class Observation(NamedTuple):
    """One response that has ended."""

    target_model: str
    output_tokens: int
    score: float
    revision: str
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class LiveQuality:
    """Rolling quality of the served revision's predictions for one target model."""

    num_observed: int
    tau_b: float | None
    """Kendall's tau-b of scores and lengths; None below 20 observations or without variation."""
    coverage: float | None
    """Fraction of lengths between the calibration's lowest and highest quantile; None without."""
    expected_coverage: float | None


class _Seen(NamedTuple):
    """What a window keeps of an observation: no text."""

    score: float
    output_tokens: int
    is_inside: bool
    """Between the calibration's lowest and highest quantile."""


class ReportBook:
    """Keeps the last observations per target model, and writes those with a prompt to a log.

    The figures are computed when observations come, so that to read them costs nothing.

    Args:
        log: one {"prompt", "model", "output_tokens", ...} per line, ready to train on; None:
            no log.
    """

    def __init__(self, log: ReportLog | None = None) -> None:
        self._lock = threading.Lock()
        self._revision = ""
        self._windows: dict[str, deque[_Seen]] = {}
        self._quality: dict[str, LiveQuality] = {}
        self._log = log

    def add(
        self, observations: Sequence[Observation], revision: str, curves: Mapping[str, LengthCurve]
    ) -> int:
        """Take observations in while `revision` is served; returns how many are of it.

        Args:
            curves: of the served revision, with one for each observation's target model.

        Raises:
            ScoringError: the log cannot be written; the figures have the observations.
        """
        current = [seen for seen in observations if seen.revision == revision]
        with self._lock:
            if revision != self._revision:
                self._revision, self._windows, self._quality = revision, {}, {}
            for seen in current:
                window = self._windows.setdefault(seen.target_model, deque(maxlen=WINDOW))
                window.append(_seen(seen, curves[seen.target_model]))
            for name in {seen.target_model for seen in current}:
                self._quality[name] = _quality(self._windows[name], curves[name])
        # A line without a prompt could not be trained on.
        lines = "".join(_json_line(seen) for seen in observations if seen.prompt)
        if self._log is not None and lines:
            self._log.append(lines)
        return len(current)

    def quality(self) -> dict[str, LiveQuality]:
        """The rolling figures by target model."""
        with self._lock:
            return dict(self._quality)

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()


def _seen(seen: Observation, curve: LengthCurve) -> _Seen:
    quantiles = curve.at(seen.score).quantiles
    is_inside = quantiles[min(quantiles)] <= seen.output_tokens <= quantiles[max(quantiles)]
    return _Seen(seen.score, seen.output_tokens, is_inside)


def _quality(window: Sequence[_Seen], curve: LengthCurve) -> LiveQuality:
    if len(window) < _FEWEST:
        return LiveQuality(len(window), None, None, None)
    tau = tau_b([s.score for s in window], [s.output_tokens for s in window])
    known = None if math.isnan(tau) else tau
    if len(curve.quantiles) < 2:
        return LiveQuality(len(window), known, None, None)
    coverage = sum(s.is_inside for s in window) / len(window)
    return LiveQuality(len(window), known, coverage, max(curve.quantiles) - min(curve.quantiles))


def _json_line(seen: Observation) -> str:
    row: dict[str, Any] = {
        "prompt": seen.prompt,
        "model": seen.target_model,
        "output_tokens": seen.output_tokens,
        "score": seen.score,
        "revision": seen.revision,
    }
    return json.dumps(row, ensure_ascii=False) + "\n"
