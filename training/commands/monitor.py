"""`python -m training monitor`: tau_b and coverage of a bundle on logged responses."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.bundle import Manifest, ModelBundle
from lengthwise.errors import ConfigError, DataError, require
from lengthwise.tables.files import digest_of
from lengthwise.tables.options import RecordOptions
from training.commands.options import BundleOptions, OutputOptions, print_result, print_rows
from training.data.records import read_records
from training.evaluation.calibration import target_of
from training.evaluation.drift import Window, judge, measure_window, window_bounds
from training.evaluation.ranking_metrics import MIN_ROWS
from training.export.bundle_scores import score_prompts


@dataclass(frozen=True, kw_only=True)
class MonitorOptions(BundleOptions, RecordOptions):
    """The bundle, its log and its gate."""

    log: tuple[str, ...]
    """Files, folders or patterns, read as one log: a table (.parquet, .jsonl, .csv), the newest row
    last, or a log (see `lengthwise inspect`)."""
    window: int = 1000
    """Rows."""
    gate_tau_b: float | None = None
    """Default: the lower end of the interval on the bundle's test prompts."""
    target_model: str | None = None
    """Calibration to check; default: the bundle's first."""

    def __post_init__(self) -> None:
        enough = f"{MIN_ROWS} or more, fewer rows tell nothing"
        require("window", self.window, self.window >= MIN_ROWS, enough)
        if (gate := self.gate_tau_b) is not None:
            require("gate_tau_b", gate, -1 <= gate <= 1, "a tau_b in [-1, 1]")
        if len(self.length_column) > 1:
            raise ConfigError("length_column names several columns; a log has one length per row")
        if self.model_column is not None and self.model is None:
            raise ConfigError("model_column is given without model; add --model NAME")


def main(options: MonitorOptions, output: OutputOptions) -> int:
    """Check a bundle against logged prompts and the lengths that were observed.

    tau_b is measured over windows of consecutive rows, the newest last and a quarter of a window
    apart. Exit status 1: that of the newest window is below the gate, by default the lower end of
    the bundle's 95% interval on its test prompts. Without any drift 1,000 rows fall below by chance
    in one check of eight; `certain` in the result is true if the whole 95% interval is below. The
    coverage of the quantiles has no effect on the exit status. MLflow gets every figure.

    example:
      python -m training monitor --bundle NAME@champion --log responses.jsonl --window 2000
    """
    bundle = options.open()
    windows, result = monitor(bundle, options)
    result |= {"mlflow_run_id": _log(bundle, options, windows, result)}
    print_result(result, output, lambda: _print(windows[-1], result))
    return 1 if result["verdict"] == "below_gate" else 0


def monitor(bundle: ModelBundle, options: MonitorOptions) -> tuple[list[Window], dict[str, Any]]:
    """Return the newest windows of the log, and the figures that `--json` prints."""
    gate = _gate(bundle.manifest, options.gate_tau_b)
    target_model = target_of(bundle.manifest, options.target_model)
    records, num_empty = read_records(options.log, options, bundle.manifest.label)
    if len(records) < MIN_ROWS:
        reason = f"{len(records)} rows with a length; give {MIN_ROWS} or more, fewer tell nothing"
        raise DataError(reason, path=options.log[0])
    bounds = window_bounds(len(records), options.window)
    start = bounds[0][0]  # Rows before the first window are not scored.
    scores = score_prompts(bundle, [record.prompt for record in records[start:]])
    lengths = np.array([float(record.output_tokens) for record in records[start:]])
    curves = None if target_model is None else bundle.manifest.calibration[target_model]
    windows = []
    for first, end in bounds:
        rows = slice(first - start, end - start)
        windows.append(measure_window(scores[rows], lengths[rows], curves, first_row=first))
    newest = windows[-1]
    return windows, {
        **judge(newest, gate),
        "tau_b": newest.tau_b,
        "tau_b_ci": newest.tau_b_ci,
        "gate_tau_b": gate,
        "n": newest.end_row - newest.first_row,
        "rows": len(records),
        "dropped_empty": num_empty,
        "target_model": target_model,
        "coverage": dict(newest.coverage) or None,
        "windows": [asdict(window) for window in windows],
        "revision": bundle.manifest.revision,
        "banner": bundle.manifest.banner,
    }


def _gate(manifest: Manifest, given: float | None) -> float:
    interval = manifest.metrics.get("tau_b_ci")
    gate = given if given is not None else interval[0] if interval else None
    if gate is None:
        raise ConfigError(
            f"bundle {manifest.name} has no tau_b of its test prompts; give --gate-tau-b"
        )
    return float(gate)


def _log(
    bundle: ModelBundle,
    options: MonitorOptions,
    windows: Sequence[Window],
    result: Mapping[str, Any],
) -> str:
    from training.release.tracking import Tracker

    manifest, log = bundle.manifest, Path(options.log[0])
    params = asdict(options) | {"gate_tau_b": result["gate_tau_b"], "revision": manifest.revision}
    del params["bundle"], params["mlruns_dir"]
    run_name = f"monitor-{manifest.name}"
    with Tracker(options.mlruns_dir, run_name=run_name) as tracker:
        tracker.log_params(params | {"trained_by": manifest.mlflow_run_id})
        origin, profile = {"origin": " ".join(options.log)}, {"rows": result["rows"]}
        digest = digest_of(options.log)
        tracker.log_input(log.name, digest, "monitoring", origin, profile)
        tracker.describe(result["reason"], banner=manifest.banner)
        for window in windows:
            low, high = window.tau_b_ci
            figures = {"tau_b": window.tau_b, "tau_b_low": low, "tau_b_high": high}
            figures |= {f"coverage_{q}": share for q, share in window.coverage.items()}
            figures = {f"monitor/{name}": value for name, value in figures.items()}
            tracker.log_metrics(figures, step=window.end_row)
        tracker.set_tags({"verdict": result["reason"]})
    return str(tracker.run_id)


def _print(newest: Window, result: dict[str, Any]) -> None:
    state = "BELOW ITS GATE" if result["verdict"] == "below_gate" else "holds"
    rows = {
        "rows": f"{result['rows']} ({result['dropped_empty']} of length 0 dropped)",
        "newest window": f"rows {newest.first_row} to {newest.end_row - 1}",
        **{f"coverage of {q}": f"{share:.3f}" for q, share in newest.coverage.items()},
        "verdict": f"{state}: {result['reason']}",
    }
    print_rows(rows, 18)
