"""Quality of served predictions: observed response lengths, rank agreement, coverage."""

import json
import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scoring_service.agreement import tau_b
from scoring_service.calibration import LengthCurve
from scoring_service.errors import ConfigError

WINDOW: Final = 1000
"""Observations that the rolling figures look back on; one standard error of tau_b is about .02."""
_FEWEST: Final = 20


@dataclass(frozen=True, slots=True)
class Observation:
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


class ReportBook:
    """Keeps the last observations per target model, and writes all of them to a log.

    Args:
        log: JSONL file to append to, one {"prompt", "model", "output_tokens", ...} per line, ready
            to train on; None keeps no log.

    Raises:
        ConfigError: the log cannot be written.
    """

    def __init__(self, log: str | None = None) -> None:
        self._lock = threading.Lock()
        self._revision = ""
        self._observed: dict[str, deque[Observation]] = {}
        try:
            self._log = None if log is None else Path(log).open("a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise ConfigError(
                f"report_log {log} cannot be written ({error.strerror}); choose another place"
            ) from error

    def add(self, observations: Sequence[Observation], revision: str) -> int:
        """Take observations in while `revision` is served; returns how many are of it."""
        with self._lock:
            if revision != self._revision:
                self._revision, self._observed = revision, {}
            current = [seen for seen in observations if seen.revision == revision]
            for seen in current:
                self._observed.setdefault(seen.target_model, deque(maxlen=WINDOW)).append(seen)
            if self._log is not None:
                self._log.writelines(_json_line(seen) for seen in observations)
                self._log.flush()
        return len(current)

    def quality(self, curves: Mapping[str, LengthCurve]) -> dict[str, LiveQuality]:
        """The rolling figures by target model."""
        with self._lock:
            observed = {model: list(seen) for model, seen in self._observed.items()}
        return {model: _quality(seen, curves.get(model)) for model, seen in observed.items()}

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()


def _quality(seen: Sequence[Observation], curve: LengthCurve | None) -> LiveQuality:
    enough = len(seen) >= _FEWEST
    tau = tau_b([s.score for s in seen], [s.output_tokens for s in seen]) if enough else math.nan
    known = None if math.isnan(tau) else tau
    if not enough or curve is None or len(curve.quantiles) < 2:
        return LiveQuality(len(seen), known, None, None)
    low, high = min(curve.quantiles), max(curve.quantiles)
    inside = 0
    for observation in seen:
        quantiles = curve.at(observation.score).quantiles
        inside += quantiles[low] <= observation.output_tokens <= quantiles[high]
    return LiveQuality(len(seen), known, inside / len(seen), high - low)


def _json_line(seen: Observation) -> str:
    row: dict[str, Any] = {
        "prompt": seen.prompt,
        "model": seen.target_model,
        "output_tokens": seen.output_tokens,
        "score": seen.score,
        "revision": seen.revision,
    }
    return json.dumps(row, ensure_ascii=False) + "\n"
