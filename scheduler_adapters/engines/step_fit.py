"""How long a real engine's steps take, told from recorded ones.

Beside what the model computes, an engine spends time on each request of a step (its Python, its
sampler) and more on one that it prefills. On a small model these are not small, so they are terms
of their own here, where `AffineLatency` has one price for any token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from scheduler_adapters.simulator.latency import Chunk, LatencyModel
from scoring_service.errors import DataError

_ROUNDS = 5
"""The weights settle after two or three."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of an engine, as a latency model sees it."""

    num_decodes: int
    decode_context: int
    num_prefills: int
    prefill_tokens: int
    attention_pairs: float
    """Sum over the prefill chunks of chunk * (tokens before it + chunk / 2)."""
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineLatency(LatencyModel):
    """A sum of linear terms, one for each count of a `StepRecord`. Seconds."""

    base_s: float
    per_decode_s: float
    per_context_token_s: float
    per_prefill_s: float
    per_prefill_token_s: float
    per_attention_pair_s: float

    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        tokens, pairs = 0, 0.0
        for processed, chunk in prefills:
            tokens += chunk
            pairs += chunk * (processed + chunk / 2)
        return (
            self.base_s
            + num_decodes * self.per_decode_s
            + decode_context * self.per_context_token_s
            + len(prefills) * self.per_prefill_s
            + tokens * self.per_prefill_token_s
            + pairs * self.per_attention_pair_s
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFit:
    """The model, and how well it tells the steps it was fitted to."""

    latency: EngineLatency
    num_steps: int
    mape_fraction: float
    """Mean of |predicted - measured| / measured."""


def fit_steps(steps: Sequence[StepRecord]) -> StepFit:
    """Least squares with coefficients that cannot be negative, each step weighted by 1 / its size.

    The size is the predicted one, found in a few rounds: divided by the measured one, errors of
    slow outliers would hardly count, and the fit would come out too fast.

    Raises:
        DataError: fewer steps than coefficients, or one that took no time.
    """
    table = np.array([astuple(step) for step in steps], dtype=np.float64).reshape(len(steps), -1)
    num_coefficients = len(EngineLatency.__dataclass_fields__)
    if len(steps) < num_coefficients or not (table[:, -1] > 0).all():
        raise DataError(
            f"{len(steps)} steps, some of {table[:, -1:].min(initial=0.0)} s, cannot fix "
            f"{num_coefficients} coefficients; record more requests"
        )
    measured_s = table[:, -1]
    features = np.column_stack([np.ones(len(steps)), table[:, :-1]])
    predicted_s = measured_s
    for _ in range(_ROUNDS):
        coefficients = _non_negative(features / predicted_s[:, None], measured_s / predicted_s)
        predicted_s = np.maximum(features @ coefficients, measured_s.min() / 2)
    return StepFit(
        latency=EngineLatency(
            **dict(zip(EngineLatency.__dataclass_fields__, coefficients.tolist(), strict=True))
        ),
        num_steps=len(steps),
        mape_fraction=float(np.mean(np.abs(predicted_s - measured_s) / measured_s)),
    )


def _non_negative(features: NDArray[np.float64], goal: NDArray[np.float64]) -> NDArray[np.float64]:
    scale = np.abs(features).max(axis=0)
    scale[scale == 0] = 1.0
    solution, _ = nnls(features / scale, goal)
    return np.asarray(solution / scale)
