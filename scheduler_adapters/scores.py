"""Where scores come from: a scoring service, a file, the true lengths, or chance of known quality.

A score source gives one score per request, higher = longer; NaN where none could be had. Such a
request is scheduled as FCFS would schedule it.

    requests = requests.with_scores(SyntheticScores(tau_b=0.75, seed=0).scores(requests))
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, pi, sin, sqrt
from os import PathLike
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoring_service.client import Score, ScoringClient
from scoring_service.errors import ConfigError, DataError, ScoringError

if TYPE_CHECKING:  # a scheduler that only asks the service needs no pandas
    from scheduler_adapters.experiments.workload import Requests

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]


class ScoreSource(ABC):
    """Gives every request a score."""

    @abstractmethod
    def scores(self, requests: Requests) -> Floats:
        """Scores (N,), higher = longer; NaN where there is none."""


class OracleScores(ScoreSource):
    """The true output lengths: what no predictor can beat."""

    def scores(self, requests: Requests) -> Floats:
        return requests.output_tokens.astype(np.float64)


@dataclass(frozen=True)
class ConstantScores(ScoreSource):
    """The same score for all: shortest-predicted-first becomes FCFS."""

    value: float = 0.0

    def scores(self, requests: Requests) -> Floats:
        return np.full(len(requests), self.value)


class RecordedScores(ScoreSource):
    """Scores known beforehand, in the order of the requests."""

    def __init__(self, values: ArrayLike) -> None:
        self.values = np.asarray(values, dtype=np.float64)

    @classmethod
    def read(cls, path: str | PathLike[str], column: str = "score") -> RecordedScores:
        """Read one column of a .parquet, .csv or .jsonl file.

        Raises:
            DataError: no such file or column.
        """
        from scheduler_adapters.experiments.workload import read_table

        table = read_table(Path(path))
        if column not in table:
            raise DataError(
                f"no column {column!r}; there are {', '.join(map(str, table.columns))}", path=path
            )
        return cls(table[column].to_numpy(dtype=np.float64))

    def scores(self, requests: Requests) -> Floats:
        if len(self.values) != len(requests):
            raise DataError(
                f"{len(self.values)} scores were recorded for {len(requests)} requests; "
                "use the scores of this very trace"
            )
        return self.values


@dataclass(frozen=True, kw_only=True)
class SyntheticScores(ScoreSource):
    """Scores whose Kendall tau-b with the true lengths is `tau_b`, within .002 for n >= 2,000.

    A Gaussian copula over the ranks of the lengths; since ties lower tau-b a little, the
    correlation is corrected by secant steps on the same noise.

    Source: PARS sheet, "synthetic predictor".
    """

    tau_b: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not -1 <= self.tau_b <= 1:
            raise ConfigError(f"tau_b is {self.tau_b}; use a number in [-1, 1]")

    def scores(self, requests: Requests) -> Floats:
        """Raises ConfigError where ties among the lengths leave `tau_b` out of reach."""
        lengths = requests.output_tokens
        noise = np.random.default_rng((self.seed, SCORE_STREAM)).standard_normal(len(lengths))
        normal = _normal_scores(lengths)
        values = _blend(normal, noise, sin(pi * self.tau_b / 2))
        if len(lengths) < 2 or abs(self.tau_b) == 1:
            return values
        return self._corrected(lengths, normal, noise, values)

    def _corrected(
        self, lengths: NDArray[np.int64], normal: Floats, noise: Floats, values: Floats
    ) -> Floats:
        """Secant steps until the achieved tau-b is as near as the noise allows."""
        best, error = values, achieved_tau_b(values, lengths) - self.tau_b
        rho, last_rho, last_error = sin(pi * self.tau_b / 2), 0.0, -self.tau_b
        for _ in range(_SECANT_STEPS):
            if abs(error) < _TAU_TOLERANCE or error == last_error:
                break
            step = error * (rho - last_rho) / (error - last_error)
            last_rho, last_error = rho, error
            rho = min(1.0, max(-1.0, rho - step))
            values = _blend(normal, noise, rho)
            error = achieved_tau_b(values, lengths) - self.tau_b
            if abs(error) < abs(achieved_tau_b(best, lengths) - self.tau_b):
                best = values
        return best


SCORE_STREAM = 3
"""Beside the seed: other draws with one seed (arrivals 1, lengths 2) must not repeat this noise."""
_SECANT_STEPS = 4
_TAU_TOLERANCE = 0.001


def achieved_tau_b(scores: Floats, lengths: NDArray[np.int64]) -> float:
    """Kendall tau-b of scores and true lengths, in [-1, 1]; requests without a score left out."""
    from scipy.stats import kendalltau

    known = ~np.isnan(scores)
    return float(kendalltau(scores[known], lengths[known]).statistic)


def _normal_scores(lengths: NDArray[np.int64]) -> Floats:
    """Normal quantiles of the mean ranks of `lengths`."""
    _, first_group, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    quantile = NormalDist().inv_cdf
    group_scores = np.array([quantile((rank - 0.5) / len(lengths)) for rank in mean_rank])
    return np.asarray(group_scores[first_group])


def _blend(normal: Floats, noise: Floats, rho: float) -> Floats:
    return rho * normal + sqrt(1 - rho * rho) * noise


class ServiceScores:
    """Asks a scoring service, with a deadline, and lets requests through without a score.

    What fails is counted in `num_failed`; the first failure is logged, for from then on requests
    without a score are served in order of arrival.
    """

    def __init__(self, target: str, *, timeout_s: float = 1.0) -> None:
        self.client = ScoringClient(target, timeout_s=timeout_s)
        self.num_scored = 0
        self.num_failed = 0

    def score(self, prompt: str) -> float | None:
        """The score of one prompt, or None when the service does not give one in time."""
        try:
            return self._keep(self.client.score(prompt))
        except ScoringError as error:
            return self._keep(error)

    def score_all(self, prompts: Sequence[str]) -> Floats:
        """Scores (N,) in the order of `prompts`; NaN where the service gave none."""
        kept = [self._keep(result) for result in self.client.score_batch(prompts)]
        return np.array([np.nan if value is None else value for value in kept])

    def close(self) -> None:
        """Drop the connection."""
        self.client.close()

    def _keep(self, result: Score | ScoringError) -> float | None:
        if isinstance(result, Score) and isfinite(result.value):
            self.num_scored += 1
            return result.value
        self.num_failed += 1
        if self.num_failed == 1:
            log.warning(
                "no score from %s (%s): requests without a score are served in order of arrival",
                self.client.target,
                result,
            )
        return None
