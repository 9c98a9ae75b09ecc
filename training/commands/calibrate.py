"""`python -m training calibrate`: fit the cost of a prefill to measured latencies."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from lengthwise.strict_json import to_json
from training.commands.options import OutputOptions, StoreOptions, print_result
from training.prefill.cost import fit_cost, read_samples


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(StoreOptions):
    """The samples to fit, and the file to write."""

    samples: Path
    """Parquet, JSONL or CSV file, a row per run."""
    out: Path = Path("prefill-cost.json")
    """File to write."""


def main(options: CalibrateOptions, output: OutputOptions) -> None:
    """Fit a model's prefill cost, alpha * l^2 + beta * l, to measured latencies.

    Reads a table of `python -m scheduler_adapters profile-prefill` (or any with prompt_tokens,
    latency_s and peak_flop_per_s). Writes a JSON file for routers: seconds for l tokens are
    (alpha * l^2 + beta * l) / peak_flop_per_s. The error is measured on lengths left out of the
    fit, one at a time. An MLflow run holds the result.

    example:
      python -m training calibrate --samples prefill.csv --out prefill-cost.json
    """
    samples = read_samples(options.samples)
    content = fit_cost(samples)
    # MLflow takes seconds to import.
    from training.release.tracking import Tracker

    metrics = {key: value for key, value in content.items() if isinstance(value, float | int)}
    title, name = f"{samples.model} on {samples.device}", f"calibrate-{samples.model}"
    with Tracker(options.mlruns_dir, run_name=name) as tracker:
        tracker.log_params({key: value for key, value in content.items() if key not in metrics})
        tracker.log_metrics(metrics)
        origin, digest = {"origin": samples.source["path"]}, samples.source["sha256"]
        tracker.log_input(options.samples.name, digest, "calibration", origin)
        tracker.describe(f"Prefill cost of {title}, fitted to {len(samples.table)} runs")
    result = content | {"mlflow_run_id": tracker.run_id}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(to_json(result, indent=1) + "\n")

    settings = quote(to_json({"cost": str(options.out)}))
    preset = quote(f"{samples.model}@{samples.device}")
    simulate = (
        f"python -m scheduler_adapters simulate --profile {preset} "
        f"--placement phasor --placement-settings {settings} --instances 8 --prefill-instances 3 "
        "--elastic-instances 2 --lengths arena-hard --rate-per-s 4"
    )
    result |= {"out": str(options.out)}
    print_result(result, output, lambda: _print(result), simulate)


def _print(cost: Mapping[str, Any]) -> None:
    print(f"{cost['model']} on {cost['device']}, {cost['num_samples']} runs")
    print(f"alpha {cost['alpha']:.4g} FLOP/token^2, beta {cost['beta']:.4g} FLOP/token")
    print(f"peak  {cost['peak_flop_per_s']:.4g} FLOP/s, R^2 {cost['r2']:.4f}")
    print(
        f"error on lengths left out: median {cost['held_out_error']:.1%}, "
        f"worst {cost['worst_held_out_error']:.1%}"
    )
    print(f"cost in {cost['out']}")
