"""From measured engine steps to an `AffineLatency`.

fit = read_affine("steps.csv")      # num_decodes, decode_context, prefill_tokens, seconds
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.workload.tables import read_table
from scoring_service.errors import DataError

_NUM_COEFFICIENTS = 4
_COLUMNS = ("num_decodes", "decode_context", "prefill_tokens", "seconds")
_OPTIONAL = "attention_pairs"


@dataclass(frozen=True, kw_only=True, slots=True)
class AffineFit:
    """The model, and how well it tells the steps it was fitted to."""

    latency: AffineLatency
    num_steps: int
    mape_fraction: float
    """Mean of |predicted - measured| / measured."""
    r_squared: float


def read_affine(path: str | PathLike[str]) -> AffineFit:
    """`fit_affine` to the steps in a .csv or .parquet file; its columns are that one's arguments.

    Raises:
        DataError: the file cannot be read, lacks a column, or holds a step that cannot be.
    """
    path = Path(path)
    table = read_table(path, _COLUMNS)
    columns = {name: table[name].to_numpy() for name in (*_COLUMNS, _OPTIONAL) if name in table}
    try:
        return fit_affine(**columns)
    except ValueError as error:
        raise DataError(str(error), path=path) from error


def fit_affine(
    *,
    num_decodes: ArrayLike,
    decode_context: ArrayLike,
    prefill_tokens: ArrayLike,
    seconds: ArrayLike,
    attention_pairs: ArrayLike | None = None,
) -> AffineFit:
    """Least squares in relative error, with coefficients that cannot be negative.

    Args:
        num_decodes: of each step, shape (N,), N >= 4.
        decode_context: sum of the decodes' contexts, shape (N,).
        prefill_tokens: sum of the step's prefill chunks, shape (N,).
        seconds: what the step took, above 0, shape (N,).
        attention_pairs: sum over the chunks of chunk * (tokens before it + chunk / 2), shape (N,);
            left out: prefill attention is not told apart from the rest.

    Raises:
        DataError: columns of unequal length, fewer than 4 steps, NaN, negative counts, or a step
            that took no time.
    """
    columns = [num_decodes, decode_context, prefill_tokens, seconds]
    columns.append(np.zeros(np.shape(seconds)) if attention_pairs is None else attention_pairs)
    decodes, context, prefill, measured_s, pairs = _checked(columns)
    features = np.column_stack([np.ones(len(measured_s)), decodes + prefill, context, pairs])
    coefficients = _non_negative(features / measured_s[:, None])
    predicted_s = features @ coefficients
    base_s, per_token_s, per_context_token_s, per_attention_pair_s = coefficients.tolist()
    spread = ((measured_s - measured_s.mean()) ** 2).sum()
    return AffineFit(
        latency=AffineLatency(
            base_s=base_s,
            per_token_s=per_token_s,
            per_context_token_s=per_context_token_s,
            per_attention_pair_s=per_attention_pair_s,
        ),
        num_steps=len(measured_s),
        mape_fraction=float(np.mean(np.abs(predicted_s - measured_s) / measured_s)),
        r_squared=float(1 - ((predicted_s - measured_s) ** 2).sum() / spread) if spread else 1.0,
    )


def _non_negative(relative: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coefficients >= 0 that bring every row (N, 4) nearest to 1; each column is scaled first."""
    scale = np.abs(relative).max(axis=0)
    scale[scale == 0] = 1.0
    solution, _ = nnls(relative / scale, np.ones(len(relative)))
    return np.asarray(solution / scale)


def _checked(columns: list[ArrayLike]) -> list[NDArray[np.float64]]:
    arrays = [np.asarray(column, dtype=np.float64) for column in columns]
    if any(array.shape != arrays[0].shape or array.ndim != 1 for array in arrays):
        shapes = [array.shape for array in arrays]
        raise DataError(f"the columns of steps have shapes {shapes}; give equally long lists")
    if len(arrays[0]) < _NUM_COEFFICIENTS:
        raise DataError(
            f"{len(arrays[0])} steps cannot fix {_NUM_COEFFICIENTS} coefficients; measure more"
        )
    bad = ~np.all([np.isfinite(array) & (array >= 0) for array in arrays], axis=0)
    bad |= ~(arrays[3] > 0)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        values = [float(array[row]) for array in arrays]
        raise DataError(
            f"step {row} has counts and seconds {values}; counts must be >= 0, seconds above 0"
        )
    return arrays
