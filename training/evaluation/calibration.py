"""Calibration: scores -> quantiles of the length in tokens, with nominal coverage on new prompts.

The curve of a quantile is fitted on bins of the score and made monotone. A shift by its error on
held-out rows (split-conformal, each tenth in turn) makes its coverage independent of the bins. The
coverage of a quantile q calibrated on n responses has a standard deviation of sqrt(q (1 - q) / n).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.bundle import LengthCurve, Manifest
from lengthwise.errors import ConfigError, DataError
from training.data.labels import lengths_of
from training.data.records import Dataset

QUANTILES: Final = (0.1, 0.25, 0.5, 0.75, 0.9)
MIN_ROWS: Final = 50
_ROWS_PER_KNOT: Final = 40
_MAX_KNOTS: Final = 16
_FOLDS: Final = 10
"""Curves from half the rows (two folds) have larger errors: quantiles would spread too far."""


def calibrate(scores: NDArray[np.float64], lengths: NDArray[np.float64]) -> dict[str, Any]:
    """Return an entry of `Manifest.calibration`: the score -> length curves of a target model.

    Scores and observed lengths (tokens, > 0), shape (N,), are of prompts outside the training set.
    """
    if len(scores) < MIN_ROWS:
        raise DataError(
            f"{len(scores)} rows to calibrate with; give {MIN_ROWS} or more, 200 is good"
        )
    logs = np.log(lengths)
    num_knots = int(np.clip(len(scores) // _ROWS_PER_KNOT, 2, _MAX_KNOTS))
    fold = np.random.default_rng(0).permutation(len(scores)) % _FOLDS
    misses = np.empty((len(QUANTILES), len(scores)))
    for number in range(_FOLDS):
        held = fold == number
        knots, curves = _curves(scores[~held], logs[~held], num_knots)
        misses[:, held] = [logs[held] - np.interp(scores[held], knots, curve) for curve in curves]
    knots, curves = _curves(scores, logs, num_knots)
    shifts = [_conformal(miss, q) for miss, q in zip(misses, QUANTILES, strict=True)]
    # Shifted separately, curves may cross where rows are few.
    tokens = np.exp(np.maximum.accumulate(curves + np.array(shifts)[:, None], axis=0))
    mean = _monotone([lengths[members].mean() for members in _bins(scores, num_knots)])
    return {
        "scores": knots.tolist(),
        "mean": mean.tolist(),
        "quantiles": {str(q): row.tolist() for q, row in zip(QUANTILES, tokens, strict=True)},
        "rows": len(scores),
    }


def coverage(
    entry: Mapping[str, Any], scores: NDArray[np.float64], lengths: NDArray[np.float64]
) -> dict[str, float]:
    """Return quantile -> share of lengths at or below its curve; nominal is the quantile."""
    curve = LengthCurve.parse("target", entry)
    estimates = [curve.at(float(score)).quantiles for score in scores]
    return {
        str(q): float(np.mean([n <= e[q] for n, e in zip(lengths, estimates, strict=True)]))
        for q in curve.quantiles
    }


def target_of(manifest: Manifest, target_model: str | None) -> str | None:
    """Return the name of a calibrated model, by default the first; None if there is none."""
    known = list(manifest.calibration)
    if target_model is not None and target_model not in known:
        raise ConfigError(
            f"bundle {manifest.name} has no calibration for {target_model!r}, but for "
            f"{', '.join(known) or 'none'}; make one with `python -m training recalibrate`"
        )
    return target_model or (known[0] if known else None)


def per_response(
    scores: NDArray[np.float64], prompts: Dataset
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return scores and lengths with one row per observed response."""
    samples = lengths_of(prompts)
    lengths = [float(length) for each in samples for length in each]
    return np.repeat(scores, list(map(len, samples))), np.array(lengths)


def _curves(
    scores: NDArray[np.float64], logs: NDArray[np.float64], num_knots: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    bins = _bins(scores, num_knots)
    curves = [_monotone([np.quantile(logs[members], q) for members in bins]) for q in QUANTILES]
    return np.array([np.median(scores[members]) for members in bins]), np.array(curves)


def _bins(scores: NDArray[np.float64], count: int) -> list[NDArray[np.int64]]:
    return np.array_split(np.argsort(scores, kind="stable"), count)


def _monotone(values: Sequence[Any]) -> NDArray[np.float64]:
    """Return the nearest non-decreasing sequence (pool adjacent violators)."""
    from sklearn.isotonic import isotonic_regression

    return np.asarray(isotonic_regression(np.array(values)), np.float64)


def _conformal(misses: NDArray[np.float64], quantile: float) -> float:
    """Return the shift that gives nominal coverage, with the finite-sample correction."""
    level = min(1.0, quantile * (len(misses) + 1) / len(misses))
    return float(np.quantile(misses, level, method="higher"))
