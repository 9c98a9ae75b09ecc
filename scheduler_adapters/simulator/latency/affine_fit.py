"""Fit of an `AffineLatency` to measured engine steps.

fit = read_affine("steps.csv")      # num_decodes, decode_context, prefill_tokens, seconds
"""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from lengthwise.errors import DataError
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.workload.table_files import read_table

_COEFFICIENTS = ("base_s", "per_token_s", "per_context_token_s", "per_attention_pair_s")
_COLUMNS = ("num_decodes", "decode_context", "prefill_tokens", "seconds")
_OPTIONAL = "attention_pairs"


@dataclass(frozen=True, kw_only=True, slots=True)
class AffineFit:
    """A fitted model, and its error on the steps it was fitted to."""

    latency: AffineLatency
    num_steps: int
    mape_fraction: float
    """Mean of |predicted - measured| / measured."""
    r_squared: float


def read_affine(path: str | PathLike[str]) -> AffineFit:
    """Fit the steps of a .csv or .parquet file with the arguments of `fit_affine` as columns.

    Raises DataError: the file cannot be read, lacks a column, or holds an impossible step.
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
    """Return the least-squares fit in relative error with coefficients >= 0.

    Columns (N,) of N >= 4 steps are those of `StepRecord`. Without `attention_pairs`, prefill
    attention has no term of its own. Raises DataError for impossible steps.
    """
    columns = [num_decodes, decode_context, prefill_tokens, seconds]
    columns.append(np.zeros(np.shape(seconds)) if attention_pairs is None else attention_pairs)
    decodes, context, prefill, measured_s, pairs = _checked(columns)
    features = np.column_stack([np.ones(len(measured_s)), decodes + prefill, context, pairs])
    coefficients = non_negative(features / measured_s[:, None], np.ones(len(measured_s)))
    predicted_s = features @ coefficients
    spread = ((measured_s - measured_s.mean()) ** 2).sum()
    return AffineFit(
        latency=AffineLatency(**dict(zip(_COEFFICIENTS, coefficients.tolist(), strict=True))),
        num_steps=len(measured_s),
        mape_fraction=float(np.mean(np.abs(predicted_s - measured_s) / measured_s)),
        r_squared=float(1 - ((predicted_s - measured_s) ** 2).sum() / spread) if spread else 1.0,
    )


def non_negative(features: NDArray[np.float64], goal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients >= 0 (K,) that bring the rows (N, K) nearest to the goal (N,)."""
    scale = np.abs(features).max(axis=0)
    scale[scale == 0] = 1.0
    solution, _ = nnls(features / scale, goal)
    return np.asarray(solution / scale)


def _checked(columns: list[ArrayLike]) -> list[NDArray[np.float64]]:
    arrays = [np.asarray(column, dtype=np.float64) for column in columns]
    if any(array.shape != arrays[0].shape or array.ndim != 1 for array in arrays):
        shapes = [array.shape for array in arrays]
        raise DataError(f"the columns of steps have shapes {shapes}; give equally long lists")
    if len(arrays[0]) < len(_COEFFICIENTS):
        raise DataError(
            f"{len(arrays[0])} steps cannot fix {len(_COEFFICIENTS)} coefficients; measure more"
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
