"""`python -m training calibrate`: what a prompt costs to prefill, from measured latencies.

    cost(l) = alpha * l^2 + beta * l        FLOP-equivalents: seconds times the peak rate

Source: Phasor, calibration of its prefill workload model. The paper's own constants have no unit
that fits its figures, so there is no default: measure each model on each device.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from scoring_service.errors import ConfigError, DataError
from training.command_line import configure_logging, make_parser
from training.prefill.samples import PrefillSamples, published_samples, read_samples

DESCRIPTION: Final = """Fit a model's prefill cost, alpha * l^2 + beta * l, to measured latencies.

Reads a table that `python -m scheduler_adapters profile-prefill` wrote (or any with prompt_tokens,
latency_s and peak_flop_per_s), or published measurements by name. Writes a JSON file for routers:
seconds for l tokens are (alpha * l^2 + beta * l) / peak_flop_per_s. The error is that on lengths
left out of the fit, one after the other. An MLflow run holds the figure.

examples:
  python -m training calibrate --samples prefill.csv --out prefill-cost.json
  python -m training calibrate --profile llama2-70b/a100-80gb/4 --data-dir DIR
"""

MIN_LENGTHS: Final = 3
"""Two would be met exactly, whatever they are."""
MIN_R2: Final = 0.99
"""Phasor asks for more than this."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PrefillCost:
    """A fitted cost and how far it can be trusted."""

    alpha: float
    """FLOP-equivalents per token^2, >= 0."""
    beta: float
    """FLOP-equivalents per token, >= 0."""
    peak_flop_per_s: float
    r2: float
    """Share of the variance of the median costs that the fit explains."""
    held_out_error: float
    """Median over lengths of |predicted / measured - 1|, each predicted by a fit without it."""
    worst_held_out_error: float
    """The largest of them, usually of the shortest prompts: the model has no fixed cost."""
    fixed_s: float
    """What each batch costs beside its tokens, if a third term is fitted; not part of the model."""
    held_out_error_with_fixed: float
    """`held_out_error` with that term: how much of the error is the model's form."""
    points: pd.DataFrame
    """By batch_size and prompt_tokens: measured_s (median), fitted_s, held_out_s."""


def main(argv: Sequence[str]) -> int:
    """Entry point of the command."""
    parser = make_parser("calibrate", "--samples FILE | --profile NAME [options]", DESCRIPTION)
    add = parser.add_argument
    add("--samples", type=str | None, help="parquet, JSONL or CSV file, a row per run")
    add("--profile", type=str | None, help="published measurements: MODEL/HARDWARE/GPUS")
    add("--data-dir", type=str | None, help="folder that holds the published measurements")
    add("--model", type=str | None, help="only this model's rows, or its name")
    add("--device", type=str | None, help="only this device's rows, or its name")
    add("--peak-flop-per-s", type=float | None, help="in place of the table's")
    add("--out", type=str, default="prefill-cost.json", help="file to write")
    add("--mlruns-dir", type=str, default="mlruns", help="folder of the MLflow store")
    add("--json", action="store_true", help="print the result as one JSON line")
    arguments = parser.parse_args(list(argv))
    configure_logging()
    samples = _samples(arguments)
    cost = fit_cost(samples)
    run_id, figure = _log(samples, cost, arguments.mlruns_dir)
    result = _result(samples, cost) | {"mlflow_run_id": run_id}
    out = Path(arguments.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    if arguments.json:
        print(json.dumps(result | {"out": arguments.out, "figure": figure}, allow_nan=False))
    else:
        _print(samples, cost)
        print(f"figure in {figure}; cost in {arguments.out}")
    return 0


def fit_cost(samples: PrefillSamples) -> PrefillCost:
    """Fit alpha and beta, neither below 0, to the median latency of each length and batch size.

    Huber's loss, so that one length measured beside other work does not bend the rest.

    Raises:
        DataError: fewer than three prompt lengths.
    """
    keys = ["batch_size", "prompt_tokens"]
    points = samples.table.astype(float).groupby(keys)["latency_s"].median().reset_index()
    points = points.rename(columns={"latency_s": "measured_s"})
    lengths = points["prompt_tokens"].to_numpy()
    if (count := len(np.unique(lengths))) < MIN_LENGTHS:
        raise DataError(
            f"{count} prompt length{'s' * (count > 1)}, the longest of {lengths.max():.0f} tokens; "
            f"measure {MIN_LENGTHS} or more, from the shortest prompts to the longest"
        )
    _warn_of_falls(points)
    sizes, measured_s = points["batch_size"].to_numpy(), points["measured_s"].to_numpy()
    work_N3 = np.column_stack([sizes * lengths**2, sizes * lengths, np.ones_like(lengths)])
    seconds_2, fixed_s = _fit(work_N3[:, :2], measured_s), _fit(work_N3, measured_s)[2]
    fitted_s = work_N3[:, :2] @ seconds_2
    held_out_s = _predict_left_out(work_N3[:, :2], measured_s, lengths)
    errors = np.abs(held_out_s / measured_s - 1)
    with_fixed = np.abs(_predict_left_out(work_N3, measured_s, lengths) / measured_s - 1)
    missed = ((measured_s - fitted_s) ** 2).sum() / ((measured_s - measured_s.mean()) ** 2).sum()
    if missed > 1 - MIN_R2:
        logger.warning("R^2 is %.4f, below %.2f: do not route by this fit", 1 - missed, MIN_R2)
    peak = samples.peak_flop_per_s
    return PrefillCost(
        alpha=float(seconds_2[0] * peak),
        beta=float(seconds_2[1] * peak),
        peak_flop_per_s=peak,
        r2=float(1 - missed),
        held_out_error=float(np.median(errors)),
        worst_held_out_error=float(errors.max()),
        fixed_s=float(fixed_s),
        held_out_error_with_fixed=float(np.median(with_fixed)),
        points=points.assign(fitted_s=fitted_s, held_out_s=held_out_s),
    )


def _predict_left_out(
    work_NK: NDArray[np.float64], measured_s: NDArray[np.float64], lengths: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Seconds of each point by a fit without the points of its length."""
    predicted_s = np.empty_like(measured_s)
    for length in np.unique(lengths):
        left_out = lengths == length
        found_K = _fit(work_NK[~left_out], measured_s[~left_out])
        predicted_s[left_out] = work_NK[left_out] @ found_K
    return predicted_s


def _fit(work_NK: NDArray[np.float64], measured_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds per unit of each kind of work, >= 0."""
    from scipy.optimize import least_squares, nnls

    # Columns of one size: l^2 is thousands of times l.
    scale_K = work_NK.max(axis=0)
    scaled_NK, unit_s = work_NK / scale_K, measured_s.max()
    start, _ = nnls(scaled_NK, measured_s / unit_s)
    misses = measured_s / unit_s - scaled_NK @ start
    noise = max(1.4826 * float(np.median(np.abs(misses))), 1e-9)  # standard deviation, robustly
    found = least_squares(
        lambda x: scaled_NK @ x - measured_s / unit_s,
        start,
        jac=lambda _: scaled_NK,
        bounds=(0, np.inf),
        loss="huber",
        f_scale=1.345 * noise,  # Huber's: 95% as efficient as least squares on normal noise
    )
    return np.asarray(found.x * unit_s / scale_K)


def _warn_of_falls(points: pd.DataFrame) -> None:
    rows = points[["batch_size", "prompt_tokens", "measured_s"]].to_numpy(float)
    for (size, shorter, before_s), (next_size, longer, after_s) in pairwise(rows):
        if size == next_size and after_s < before_s:
            logger.warning(
                "batch of %d: %d tokens took %.3g ms, %d took %.3g ms; measure again?",
                size,
                longer,
                after_s * 1e3,
                shorter,
                before_s * 1e3,
            )


def _samples(arguments: Any) -> PrefillSamples:
    if (arguments.samples is None) == (arguments.profile is None):
        raise ConfigError("give either --samples FILE or --profile NAME")
    peak = arguments.peak_flop_per_s
    if peak is not None and not 0 < peak < np.inf:
        raise ConfigError(f"peak_flop_per_s is {peak}; use a number above 0")
    if arguments.samples is None:
        if arguments.model or arguments.device or peak:
            raise ConfigError("--model, --device and --peak-flop-per-s go with --samples only")
        return published_samples(arguments.profile, arguments.data_dir)
    return read_samples(
        Path(arguments.samples),
        model=arguments.model,
        device=arguments.device,
        peak_flop_per_s=peak,
    )


def _result(samples: PrefillSamples, cost: PrefillCost) -> dict[str, Any]:
    """What the file holds."""
    lengths = samples.table["prompt_tokens"].astype(float)
    return {
        "format": "lengthwise-prefill-cost/1",
        "alpha": cost.alpha,
        "beta": cost.beta,
        "units": {"alpha": "FLOP-equivalents/token^2", "beta": "FLOP-equivalents/token"},
        "peak_flop_per_s": cost.peak_flop_per_s,
        "r2": cost.r2,
        "held_out_error": cost.held_out_error,
        "worst_held_out_error": cost.worst_held_out_error,
        "fixed_s": cost.fixed_s,
        "held_out_error_with_fixed": cost.held_out_error_with_fixed,
        "min_prompt_tokens": int(lengths.min()),
        "max_prompt_tokens": int(lengths.max()),
        "num_samples": len(samples.table),
        "model": samples.model,
        "device": samples.device,
        "source": list(samples.source),
    }


def _log(samples: PrefillSamples, cost: PrefillCost, mlruns_dir: str) -> tuple[str, str]:
    """Returns the MLflow run and where the figure is."""
    from training.evaluation.figures import prefill_latency
    from training.release.tracking import Tracker

    result = _result(samples, cost)
    metrics = {key: value for key, value in result.items() if isinstance(value, float | int)}
    title, run_name = f"{samples.model} on {samples.device}", f"calibrate-{samples.model}"
    with Tracker(mlruns_dir, run_name=run_name, system_metrics=False) as tracker:
        tracker.log_params({key: value for key, value in result.items() if key not in metrics})
        tracker.log_metrics(metrics)
        figure = tracker.log_figure(prefill_latency(cost.points, title), "prefill_latency")
    return tracker.run_id, str(figure)


def _print(samples: PrefillSamples, cost: PrefillCost) -> None:
    print(f"{samples.model} on {samples.device}, {len(samples.table)} runs")
    print(f"{'batch':>6}{'tokens':>8}{'measured, ms':>14}{'fitted, ms':>12}{'held out, ms':>14}")
    columns = ["batch_size", "prompt_tokens", "measured_s", "fitted_s", "held_out_s"]
    for size, length, *seconds in cost.points[columns].to_numpy(float):
        measured, fitted, held_out = (value * 1e3 for value in seconds)
        print(f"{size:6.0f}{length:8.0f}{measured:14.3f}{fitted:12.3f}{held_out:14.3f}")
    print(f"alpha {cost.alpha:.4g} FLOP/token^2, beta {cost.beta:.4g} FLOP/token")
    print(f"peak  {cost.peak_flop_per_s:.4g} FLOP/s, R^2 {cost.r2:.4f}")
    print(
        f"error on lengths left out: median {cost.held_out_error:.1%}, "
        f"worst {cost.worst_held_out_error:.1%}; with {cost.fixed_s * 1e3:.3g} ms for each batch "
        f"(no part of the model) median {cost.held_out_error_with_fixed:.1%}"
    )
