"""Cost of a prompt's prefill: alpha and beta of a model on a device, fitted to latencies.

    cost(l) = alpha * l^2 + beta * l        FLOP-equivalents: seconds times the peak rate

Source: Phasor, calibration of its prefill workload model. The paper's own constants have no unit
that fits its figures, so there is no default: measure each model on each device.
Columns of a table: `prompt_tokens`, `latency_s`, `peak_flop_per_s`; optional `batch_size` (prompts
of that length prefilled together, 1), `model`, `device`. `python -m scheduler_adapters
profile-prefill` writes such a table.
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lengthwise.bundle import sha256_of
from lengthwise.errors import DataError, raised_as
from lengthwise.tables.reading import read_table, require_columns

MIN_LENGTHS: Final = 3
"""A fit meets two lengths exactly, so its error would be unknown."""
MIN_R2: Final = 0.99
"""Phasor requires more than this."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PrefillSamples:
    """Prefills of one model on one device."""

    table: pd.DataFrame
    """prompt_tokens, batch_size, latency_s; one row per run, every number > 0."""
    peak_flop_per_s: float
    """Best sustained rate of a large 16-bit matrix product, all GPUs of the instance together."""
    model: str
    device: str
    """Model and device under the names of the simulator's presets, where it has one of them."""
    source: dict[str, str]
    """Path and SHA-256 of the table."""


def read_samples(path: Path) -> PrefillSamples:
    """Read a table of runs of one model on one device."""
    frame = read_table(path)
    require_columns(frame, ("prompt_tokens", "latency_s", "peak_flop_per_s"), path)
    frame = frame.assign(batch_size=frame.get("batch_size", 1))
    for name in ("prompt_tokens", "batch_size", "latency_s", "peak_flop_per_s"):
        numbers = pd.to_numeric(frame[name], errors="coerce").to_numpy(float)
        wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers > 0)))
        if len(wrong):
            value, row = frame[name].tolist()[wrong[0]], int(frame.index[wrong[0]])
            raise DataError(
                f"{name} is {value!r}; give a number above 0 or drop the row", path=path, row=row
            )
    names = {}
    for column in ("model", "device"):
        found = sorted(frame[column].astype(str).unique()) if column in frame else ["unknown"]
        if len(found) > 1:
            raise DataError(f"{len(found)} of {column}: {', '.join(found)}; keep one", path=path)
        names[column] = found[0]
    return PrefillSamples(
        table=frame[["prompt_tokens", "batch_size", "latency_s"]],
        peak_flop_per_s=float(frame["peak_flop_per_s"].max()),
        source={"path": str(path), "sha256": sha256_of(path)},
        **names,
    )


def fit_cost(samples: PrefillSamples) -> dict[str, Any]:
    """Fit alpha and beta, neither below 0, to the median latency of each length and batch size.

    The loss is Huber's: a length measured beside other work hardly changes the fit.

    Returns:
        The content of a prefill-cost file. r2 is the share of the variance of the medians that the
        fit explains. held_out_error is the median over lengths of |predicted / measured - 1|, each
        predicted by a fit without it, worst_held_out_error the largest, often of short prompts.
    """
    work_N2, measured_s = _medians(samples)
    lengths = work_N2[:, 0] / work_N2[:, 1]
    if (count := len(np.unique(lengths))) < MIN_LENGTHS:
        raise DataError(
            f"{count} prompt length{'s' * (count > 1)}, the longest of {lengths.max():.0f} tokens; "
            f"measure {MIN_LENGTHS} or more, from the shortest prompts to the longest"
        )
    seconds_2 = _fit(work_N2, measured_s)
    fitted_s, held_out_s = work_N2 @ seconds_2, np.empty_like(measured_s)
    for length in np.unique(lengths):
        left_out = lengths == length
        held_out_s[left_out] = work_N2[left_out] @ _fit(work_N2[~left_out], measured_s[~left_out])
    errors = np.abs(held_out_s / measured_s - 1)
    missed = ((measured_s - fitted_s) ** 2).sum() / ((measured_s - measured_s.mean()) ** 2).sum()
    if missed > 1 - MIN_R2:
        logger.warning("R^2 is %.4f, below %.2f: do not route by this fit", 1 - missed, MIN_R2)
    alpha, beta = (seconds_2 * samples.peak_flop_per_s).tolist()
    return {
        "format": "lengthwise-prefill-cost/1",
        "alpha": alpha,
        "beta": beta,
        "units": {"alpha": "FLOP-equivalents/token^2", "beta": "FLOP-equivalents/token"},
        "peak_flop_per_s": samples.peak_flop_per_s,
        "r2": float(1 - missed),
        **_summary(errors),
        "min_prompt_tokens": int(lengths.min()),
        "max_prompt_tokens": int(lengths.max()),
        "num_samples": len(samples.table),
        "model": samples.model,
        "device": samples.device,
        "source": [samples.source],
    }


def scaled_cost(
    path: Path, model: str, ratio: float, samples: PrefillSamples | None = None
) -> dict[str, Any]:
    """Return the content of a prefill-cost file for another model on the same device.

    Args:
        ratio: P_m, the parameters of `model` / those of the file's model. It multiplies beta.
        samples: prefills of `model`, by which the errors are measured; None: they are NaN.

    Source: Phasor, eq. 3 and appendix B.3. Attention, in alpha, is that of the file's model.
    """
    kinds = OSError, ValueError, KeyError, TypeError
    with raised_as(DataError, "is no prefill cost ({})", *kinds, path=path):
        content: dict[str, Any] = json.loads(path.read_text())
        source = [{"path": str(path), "sha256": sha256_of(path)}, *content["source"]]
        content |= {"model": model, "beta": ratio * content["beta"], "source": source}
        seconds_2 = np.array([content["alpha"], content["beta"]]) / content["peak_flop_per_s"]
        if missing := {"device", "num_samples", "r2"} - content.keys():
            raise KeyError(*sorted(missing))
    errors = np.array([np.nan])
    if samples is not None:
        work_N2, measured_s = _medians(samples)
        errors = np.abs(work_N2 @ seconds_2 / measured_s - 1)
    return content | _summary(errors)


def _summary(errors: NDArray[np.float64]) -> dict[str, float]:
    return {"held_out_error": float(np.median(errors)), "worst_held_out_error": float(errors.max())}


def _medians(samples: PrefillSamples) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return squared tokens and tokens (N, 2), and the median seconds (N,), of each size."""
    keys = ["batch_size", "prompt_tokens"]
    points = samples.table.astype(float).groupby(keys)["latency_s"].median().reset_index()
    sizes, lengths = points["batch_size"], points["prompt_tokens"]
    return np.column_stack([sizes * lengths**2, sizes * lengths]), points["latency_s"].to_numpy()


def _fit(work_N2: NDArray[np.float64], measured_s: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.optimize import least_squares, nnls

    # Columns of similar size: l^2 is thousands of times l.
    scale_2 = work_N2.max(axis=0)
    scaled_N2, unit_s = work_N2 / scale_2, measured_s.max()
    start, _ = nnls(scaled_N2, measured_s / unit_s)
    misses = measured_s / unit_s - scaled_N2 @ start
    noise = max(1.4826 * float(np.median(np.abs(misses))), 1e-9)  # standard deviation, robustly
    found = least_squares(
        lambda x: scaled_N2 @ x - measured_s / unit_s,
        start,
        jac=lambda _: scaled_N2,
        bounds=(0, np.inf),
        loss="huber",
        f_scale=1.345 * noise,  # Huber's: 95% as efficient as least squares on normal noise
    )
    return np.asarray(found.x * unit_s / scale_2)
