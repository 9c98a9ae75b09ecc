"""Step times of a real engine, fitted to recorded steps.

Beside the model's computation, an engine spends time on each request of a step (its Python, its
sampler), and more on a prefill. On a small model these times matter, so they have terms of their
own. The cost per further decode varies with the kernels that an engine uses.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final

import numpy as np

from lengthwise.errors import DataError
from scheduler_adapters.simulator.latency.affine_fit import non_negative
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.timeline.steps import Chunk, StepRecord, chunk_sizes
from scheduler_adapters.workload.requests import Floats

_ROUNDS: Final = 5
"""The weights settle after two or three."""
_KNOTS: Final = frozenset([0, 1] + [n << k for k in range(12) for n in (2, 3)])
"""Powers of two and what is halfway between them."""
_STEPS_PER_KNOT: Final = 10
_PRICES: Final = [
    f"per_{name}_s" for name in ("context_token", "prefill", "prefill_token", "attention_pair")
]
"""Linear terms in the order of the counts in a `StepRecord`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineLatency(LatencyModel):
    """A time for the number of decodes, and one linear term for each other count. Seconds."""

    decodes: tuple[int, ...]
    """Numbers of decodes with a known time, ascending; the time between two of them is linear."""
    decodes_s: tuple[float, ...]
    """Times of steps with as many decodes, without the terms of context and prefills."""
    per_context_token_s: float
    per_prefill_s: float
    per_prefill_token_s: float
    per_attention_pair_s: float

    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        tokens, pairs = chunk_sizes(prefills)
        known, seconds = self.decodes, self.decodes_s
        rise_s = max(0.0, seconds[-1] - seconds[0]) / max(1, known[-1] - known[0])
        return (
            float(np.interp(num_decodes, known, seconds))
            + max(0, num_decodes - known[-1]) * rise_s
            + decode_context * self.per_context_token_s
            + len(prefills) * self.per_prefill_s
            + tokens * self.per_prefill_token_s
            + pairs * self.per_attention_pair_s
        )


def mape(simulated: Floats, real: Floats) -> float:
    """Return the mean of |simulated - real| / real over values that are all known."""
    return float(np.mean(np.abs(simulated - real) / real))


def fit_steps(steps: Sequence[StepRecord]) -> tuple[EngineLatency, float]:
    """Return the least-squares fit with coefficients >= 0, weighted by 1 / predicted time.

    The number is its error on these steps, the mean of |predicted - measured| / measured. Raises
    DataError: fewer steps than coefficients, or a step without time.
    """
    # With the measured time as weight, slow outliers would hardly count.
    table = np.array([astuple(step) for step in steps], dtype=np.float64).reshape(len(steps), -1)
    seen = [step.num_decodes for step in steps]
    often = {number for number, count in Counter(seen).items() if count >= _STEPS_PER_KNOT}
    knots = sorted((often & _KNOTS) | {min(seen), max(seen)}) if seen else []
    others = table[:, 1:-1]
    num_coefficients, measured_s = len(knots) + others.shape[1], table[:, -1]
    if len(steps) < num_coefficients or not (measured_s > 0).all():
        raise DataError(
            f"{len(steps)} steps, some of {measured_s.min(initial=0.0)} s, cannot fix "
            f"{num_coefficients} coefficients; record more requests"
        )
    features = np.column_stack([_shares(table[:, 0], knots), others])
    predicted_s = measured_s
    for _ in range(_ROUNDS):
        coefficients = non_negative(features / predicted_s[:, None], measured_s / predicted_s)
        predicted_s = np.maximum(features @ coefficients, measured_s.min() / 2)
    decodes_s, prices_s = np.split(coefficients, [len(knots)])
    latency = EngineLatency(
        decodes=tuple(knots),
        decodes_s=tuple(decodes_s.tolist()),
        **dict(zip(_PRICES, prices_s.tolist(), strict=True)),
    )
    return latency, mape(predicted_s, measured_s)


def _shares(numbers: Floats, knots: Sequence[int]) -> Floats:
    """Return the weight of each knot in each interpolated number, shape (numbers, knots)."""
    return np.column_stack([np.interp(numbers, knots, unit) for unit in np.eye(len(knots))])
