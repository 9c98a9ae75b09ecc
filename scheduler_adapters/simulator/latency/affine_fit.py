"""Fit of an `AffineLatency` to measured engine steps.

latency, error = read_affine("steps.csv")  # num_decodes, decode_context, prefill_tokens, seconds
"""

from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

from lengthwise.errors import DataError
from lengthwise.tables.reading import read_table
from scheduler_adapters.simulator.latency.models import AffineLatency

_COEFFICIENTS = ("base_s", "per_token_s", "per_context_token_s", "per_attention_pair_s")
COLUMNS = ("num_decodes", "decode_context", "prefill_tokens", "seconds")


def read_affine(path: str | PathLike[str]) -> tuple[AffineLatency, float]:
    """Fit the steps of a .csv or .parquet file with the columns of `fit_affine`.

    Raises DataError: the file cannot be read, lacks a column, or holds an impossible step.
    """
    path = Path(path)
    table = read_table(path, COLUMNS)
    try:
        return fit_affine(table)
    except ValueError as error:
        raise DataError(str(error), path=path) from error


def fit_affine(steps: pd.DataFrame) -> tuple[AffineLatency, float]:
    """Return the least-squares fit in relative error, and the mean of that error.

    Coefficients are >= 0; the error is |predicted - measured| / measured. Columns of N >= 4 steps
    are those of `StepRecord`. Without `attention_pairs`, prefill attention has no term of its own.
    Raises DataError for impossible steps.
    """
    if (count := len(steps)) < len(_COEFFICIENTS):
        raise DataError(f"{count} steps cannot fix {len(_COEFFICIENTS)} coefficients; measure more")
    table = steps.reindex(columns=[*COLUMNS, "attention_pairs"], fill_value=0).to_numpy(float)
    decodes, context, prefill, measured_s, pairs = table.T
    bad = ~(np.isfinite(table) & (table >= 0)).all(axis=1) | (measured_s == 0)
    if bad.any():
        row = bad.argmax()
        raise DataError(
            f"step {row} has counts and seconds {table[row].tolist()}; counts must be >= 0, "
            "seconds above 0"
        )
    features = np.column_stack([np.ones(count), decodes + prefill, context, pairs])
    coefficients = non_negative(features / measured_s[:, None], np.ones(count))
    predicted_s = features @ coefficients
    latency = AffineLatency(**dict(zip(_COEFFICIENTS, coefficients.tolist(), strict=True)))
    return latency, float(np.mean(np.abs(predicted_s - measured_s) / measured_s))


def non_negative(features: NDArray[np.float64], goal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients >= 0 (K,) that bring the rows (N, K) nearest to the goal (N,)."""
    scale = np.abs(features).max(axis=0)
    scale[scale == 0] = 1.0
    solution, _ = nnls(features / scale, goal)
    return np.asarray(solution / scale)
