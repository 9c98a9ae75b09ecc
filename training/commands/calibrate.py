"""`python -m training calibrate`: the cost of a prefill, fitted to latencies or scaled."""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from lengthwise.agreement import figure_text
from lengthwise.errors import ConfigError
from lengthwise.settings import PositiveFinite, settings
from lengthwise.strict_json import to_json
from training.commands.options import OutputOptions, StoreOptions, print_result
from training.prefill.cost import fit_cost, read_samples, scaled_cost


@settings
class CalibrateOptions(StoreOptions):
    """The samples to fit, or the cost of another model, and the file to write."""

    samples: Path | None = None
    """Parquet, JSONL or CSV file, a row per run."""
    from_cost: Path | None = None
    """Cost file of another model on the same device, to scale in place of a fit; the error on
    --samples, if there are some, is measured."""
    for_model: str = "unknown"
    """Name of the model to which --from-cost is scaled."""
    parameter_ratio: PositiveFinite = 1.0
    """P_m: parameters of that model / those of the model in --from-cost."""
    out: Path = Path("prefill-cost.json")
    """File to write."""


def main(options: CalibrateOptions, output: OutputOptions) -> None:
    """Fit a model's prefill cost, alpha * l^2 + beta * l, to measured latencies.

    Reads a table of `python -m scheduler_adapters profile-prefill` (or any with prompt_tokens,
    latency_s and peak_flop_per_s). Writes a JSON file for routers: seconds for l tokens are
    (alpha * l^2 + beta * l) / peak_flop_per_s. The error is measured on lengths left out of the
    fit, one at a time. An MLflow run holds the result.

    A model without measurements gets the cost of another one on the same device by --from-cost:
    beta is multiplied by the ratio of their parameters (P_m of the Phasor paper).

    example:
      python -m training calibrate --samples prefill.csv --out prefill-cost.json
      python -m training calibrate --from-cost prefill-cost.json --for-model llama-3-8b \\
          --parameter-ratio 1.05 --out llama-cost.json
    """
    content = _content(options)
    # MLflow takes seconds to import.
    from training.release.tracking import Tracker

    metrics = {key: value for key, value in content.items() if isinstance(value, float | int)}
    title, source = f"{content['model']} on {content['device']}", content["source"][0]
    with Tracker(options.mlruns_dir, run_name=f"calibrate-{content['model']}") as tracker:
        tracker.log_params({key: value for key, value in content.items() if key not in metrics})
        tracker.log_metrics(metrics)
        path, digest = source["path"], source["sha256"]
        tracker.log_input(Path(path).name, digest, "calibration", {"origin": path})
        tracker.describe(f"Prefill cost of {title}, from {content['num_samples']} runs")
    result = content | {"mlflow_run_id": tracker.run_id}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(to_json(result, indent=1) + "\n")

    placed = quote(to_json({"cost": str(options.out)}))
    preset = quote(f"{content['model']}@{content['device']}")
    simulate = (
        f"python -m scheduler_adapters simulate --profile {preset} "
        f"--placement phasor --placement-settings {placed} --instances 8 --prefill-instances 3 "
        "--elastic-instances 2 --lengths arena-hard --rate-per-s 4"
    )
    result |= {"out": str(options.out)}
    print_result(result, output, lambda: _print(result), simulate)


def _content(options: CalibrateOptions) -> dict[str, Any]:
    """Return the content of the cost file: fitted, or scaled and compared with samples."""
    samples = None if options.samples is None else read_samples(options.samples)
    if options.from_cost is not None:
        own = options.for_model, options.parameter_ratio
        return scaled_cost(options.from_cost, *own, samples)
    if samples is None:
        raise ConfigError("there is nothing to fit; give --samples, or --from-cost")
    return fit_cost(samples)


def _print(cost: Mapping[str, Any]) -> None:
    print(f"{cost['model']} on {cost['device']}, {cost['num_samples']} runs")
    print(f"alpha {cost['alpha']:.4g} FLOP/token^2, beta {cost['beta']:.4g} FLOP/token")
    print(f"peak  {cost['peak_flop_per_s']:.4g} FLOP/s, R^2 {cost['r2']:.4f}")
    names = ("held_out_error", "worst_held_out_error")
    median, worst = (figure_text(cost[name], ".1%") for name in names)
    print(f"error on lengths left out: median {median}, worst {worst}")
    print(f"cost in {cost['out']}")
