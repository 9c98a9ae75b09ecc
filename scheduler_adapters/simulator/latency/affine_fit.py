"""Fit of an `AffineLatency` to measured engine steps.

latency, error = read_affine("steps.csv")  # num_decodes, decode_context, prefill_tokens, seconds
"""

from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from lengthwise.errors import DataError
from lengthwise.tables.reading import read_table
from scheduler_adapters.simulator.latency.models import AffineLatency

_COEFFICIENTS = ("base_s", "per_token_s", "per_context_token_s", "per_attention_pair_s")
_COLUMNS = ("num_decodes", "decode_context", "prefill_tokens", "seconds")
_OPTIONAL = "attention_pairs"


def read_affine(path: str | PathLike[str]) -> tuple[AffineLatency, float]:
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
) -> tuple[AffineLatency, float]:
    """Return the least-squares fit in relative error, and the mean of that error.

    Coefficients are >= 0; the error is |predicted - measured| / measured. Columns (N,) of N >= 4
    steps are those of `StepRecord`. Without `attention_pairs`, prefill attention has no term of its
    own. Raises DataError for impossible steps.
    """
    columns = [num_decodes, decode_context, prefill_tokens, seconds]
    columns.append(np.zeros(np.shape(seconds)) if attention_pairs is None else attention_pairs)
    decodes, context, prefill, measured_s, pairs = _checked(columns)
    features = np.column_stack([np.ones(len(measured_s)), decodes + prefill, context, pairs])
    coefficients = non_negative(features / measured_s[:, None], np.ones(len(measured_s)))
    predicted_s = features @ coefficients
    latency = AffineLatency(**dict(zip(_COEFFICIENTS, coefficients.tolist(), strict=True)))
    return latency, float(np.mean(np.abs(predicted_s - measured_s) / measured_s))


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
    table = np.stack(arrays)
    bad = ~(np.isfinite(table) & (table >= 0)).all(axis=0) | (table[3] == 0)
    if bad.any():
        row = bad.argmax()
        raise DataError(
            f"step {row} has counts and seconds {table[:, row].tolist()}; counts must be >= 0, "
            "seconds above 0"
        )
    return arrays
