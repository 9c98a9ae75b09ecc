"""`python -m training monitor`: does a bundle still rank what the service sees?"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scoring_service.bundle import Manifest, ModelBundle, sha256_of
from scoring_service.errors import ConfigError, DataError
from training.command_line import configure_logging, make_parser, without_nan
from training.commands.registry import add_store_arguments, find_bundle
from training.data.records import FieldMap, PromptResponse, read_table, to_records
from training.evaluation.drift import (
    MIN_ROWS,
    Verdict,
    Window,
    judge,
    measure_window,
    miscovered,
    window_bounds,
)
from training.export.scores import score_prompts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DESCRIPTION: Final = """Check a bundle against logged prompts and the lengths that were observed.

Rows count in the order of the file, the newest last. tau_b is taken over windows of consecutive
rows, a quarter of a window apart; the newest one gives the verdict. Exit status 1: its tau_b is
below the gate, by default the lower end of the 95% interval that the bundle had on its test
prompts. That is alert: without any drift 1,000 rows fall below by chance in one check of eight.
--require-certainty exits 1 only where the whole 95% interval is below: hardly ever by chance, and
still in four of five checks of 1,000 rows when a tenth of the lengths are random.
Where the bundle is calibrated, the coverage of its quantiles is checked too; it does not change the
exit status. Everything is logged to MLflow, with a figure.

example:
  python -m training monitor --bundle alpaca-vicuna7b@champion --log responses.jsonl --window 2000
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class MonitorOptions:
    """What is checked, and against which gate."""

    log: str
    window: int = 1000
    """Rows."""
    gate_tau_b: float | None = None
    """None takes the lower end of the interval on the bundle's test prompts."""
    target_model: str | None = None
    """Whose calibration is checked; None takes the bundle's first."""
    require_certainty: bool = False
    prompt_column: str = "prompt"
    length_column: str | None = None
    """Tokens; None takes the column named as the bundle's label."""
    model_column: str | None = None
    model: str | None = None
    """Only rows of this model."""

    def __post_init__(self) -> None:
        if self.window < MIN_ROWS:
            raise ConfigError(
                f"window is {self.window}; use {MIN_ROWS} or more, fewer rows tell nothing"
            )
        if self.gate_tau_b is not None and not -1 <= self.gate_tau_b <= 1:
            raise ConfigError(f"gate_tau_b is {self.gate_tau_b}; use a tau_b in [-1, 1]")
        if (self.model is None) != (self.model_column is None):
            raise ConfigError("model and model_column go together; give both or neither")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What came out, for the screen, for MLflow and for the figure."""

    gate: float
    windows: list[Window]
    verdict: Verdict
    miscovered: list[str]
    num_rows: int
    num_empty: int
    target_model: str | None


def main(argv: Sequence[str]) -> int:
    """Entry point of the command; 1 where the newest window is below the gate."""
    parser = make_parser("monitor", "--bundle B --log FILE [options]", DESCRIPTION)
    add = parser.add_argument
    add("--bundle", type=str, required=True, help="folder, NAME/VERSION or NAME@champion")
    add("--log", type=str, required=True, help="parquet, JSONL or CSV file, the newest row last")
    add("--window", type=int, default=1000, help="rows")
    add("--gate-tau-b", type=float | None, help="default: lower end of the bundle's test interval")
    add("--require-certainty", action="store_true", help="alarm only beyond chance")
    add("--target-model", type=str | None, help="calibration to check; default: the first")
    add("--prompt-column", type=str, default="prompt")
    add("--length-column", type=str | None, help="tokens; default: the bundle's label")
    add("--model-column", type=str | None, help="which model responded")
    add("--model", type=str | None, help="only rows of this model")
    add_store_arguments(parser)
    arguments = parser.parse_args(list(argv))
    configure_logging()
    values = arguments.as_dict()
    as_json, mlruns_dir = values.pop("json"), values.pop("mlruns_dir")
    reference = values.pop("bundle")
    options = MonitorOptions(**values)
    bundle = find_bundle(reference, mlruns_dir)
    report = monitor(bundle, options)
    run_id, figure = _log(bundle, options, report, mlruns_dir)
    result = _result(bundle, report) | {"mlflow_run_id": run_id, "figure": figure}
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        _print(report, figure)
    alarm = report.verdict.certain or not options.require_certainty
    return 1 if report.verdict.below_gate and alarm else 0


def monitor(bundle: ModelBundle, options: MonitorOptions) -> Report:
    """Score the newest windows of the log and judge the last.

    Raises:
        ConfigError: the bundle has no gate of its own, or no such calibration.
        DataError: the log breaks its schema, is too short, or leaves tau_b undefined.
    """
    gate = _gate(bundle.manifest, options.gate_tau_b)
    target_model = _target_model(bundle.manifest, options.target_model)
    records, num_empty = _read_log(bundle.manifest, options)
    bounds = window_bounds(len(records), options.window)
    start = bounds[0][0]  # What no window sees need not be scored.
    scores = score_prompts(bundle, [record.prompt for record in records[start:]])
    lengths = np.array([float(record.output_tokens) for record in records[start:]])
    calibration = None if target_model is None else bundle.manifest.calibration[target_model]
    windows = [
        measure_window(
            scores[first - start : end - start],
            lengths[first - start : end - start],
            calibration,
            first_row=first,
        )
        for first, end in bounds
    ]
    return Report(
        gate=gate,
        windows=windows,
        verdict=judge(windows[-1], gate),
        miscovered=miscovered(windows[-1]),
        num_rows=len(records),
        num_empty=num_empty,
        target_model=target_model,
    )


def drift_figure(report: Report, title: str) -> Figure:
    """Rolling tau_b with its interval and its gate; below, what the quantiles cover."""
    from matplotlib.figure import Figure

    calibrated = bool(report.windows[-1].coverage)
    figure = Figure(figsize=(7, 6 if calibrated else 3.5), layout="constrained")
    panels = figure.subplots(1 + calibrated, sharex=True, squeeze=False)[:, 0]
    rows = [window.end_row for window in report.windows]
    lows, highs = zip(*(window.tau_b_ci for window in report.windows), strict=True)
    panels[0].plot(rows, [window.tau_b for window in report.windows], marker="o", ms=3)
    panels[0].fill_between(rows, lows, highs, alpha=0.2, label="95% interval")
    panels[0].axhline(report.gate, color="C3", ls="--", label=f"gate {report.gate:.3f}")
    panels[0].set_ylabel("tau_b of the window")
    panels[0].legend()
    panels[0].set_title(title, fontsize=9)
    for number, quantile in enumerate(report.windows[-1].coverage):
        colour = f"C{number}"
        shares = [window.coverage[quantile] for window in report.windows]
        panels[1].plot(rows, shares, marker="o", ms=3, color=colour)
        panels[1].axhline(float(quantile), color=colour, ls=":", lw=1)
    if calibrated:
        panels[1].set_yticks([float(quantile) for quantile in report.windows[-1].coverage])
        panels[1].set_ylim(0, 1)
        panels[1].set_ylabel("share of lengths at or below\nthe quantile (dotted: nominal)")
    panels[-1].set_xlabel("last row of the window in the log")
    return figure


def _gate(manifest: Manifest, given: float | None) -> float:
    interval = manifest.metrics.get("tau_b_ci")
    gate = given if given is not None else interval[0] if interval else None
    if gate is None:
        raise ConfigError(
            f"bundle {manifest.name} does not say what tau_b it had on its test prompts; "
            "give --gate-tau-b"
        )
    return float(gate)


def _target_model(manifest: Manifest, given: str | None) -> str | None:
    known = list(manifest.calibration)
    if given is not None and given not in known:
        raise ConfigError(
            f"bundle {manifest.name} has no calibration for {given!r}, but for "
            f"{', '.join(known) or 'none'}; make one with `python -m training recalibrate`"
        )
    return given or (known[0] if known else None)


def _read_log(manifest: Manifest, options: MonitorOptions) -> tuple[list[PromptResponse], int]:
    fields = FieldMap(
        prompt=options.prompt_column,
        output_tokens=(options.length_column or manifest.label,),
        model=options.model_column,
    )
    records, num_empty = to_records(read_table(options.log), fields, path=options.log)
    if options.model is not None:
        records = [record for record in records if record.model == options.model]
    if len(records) < MIN_ROWS:
        raise DataError(
            f"{len(records)} rows with a length; give {MIN_ROWS} or more, fewer tell nothing",
            path=options.log,
        )
    return records, num_empty


def _log(
    bundle: ModelBundle, options: MonitorOptions, report: Report, mlruns_dir: str
) -> tuple[str, str]:
    """Returns the MLflow run and where the figure is."""
    from training.release.tracking import Tracker

    manifest = bundle.manifest
    title = (
        f"{manifest.name} {manifest.revision} on {Path(options.log).name}: windows of "
        f"{min(options.window, report.num_rows)} rows"
    )
    run_name = f"monitor-{manifest.name}"
    with Tracker(mlruns_dir, run_name=run_name, system_metrics=False) as tracker:
        tracker.log_params(
            asdict(options)
            | {"gate_tau_b": report.gate, "log_sha256": sha256_of(options.log)}
            | {"revision": manifest.revision, "trained_by": manifest.mlflow_run_id}
        )
        for window in report.windows:
            low, high = window.tau_b_ci
            figures = {"tau_b": window.tau_b, "tau_b_low": low, "tau_b_high": high}
            figures |= {f"coverage_{q}": share for q, share in window.coverage.items()}
            defined = {f"monitor/{k}": v for k, v in figures.items() if not math.isnan(v)}
            tracker.log_metrics(defined, step=window.end_row)
        tracker.set_tag("verdict", report.verdict.reason)
        figure = tracker.log_figure(drift_figure(report, title), "drift")
    return tracker.run_id, str(figure)


def _result(bundle: ModelBundle, report: Report) -> dict[str, Any]:
    newest = report.windows[-1]
    calibrated = bool(newest.coverage)
    result: dict[str, Any] = without_nan(
        {
            "verdict": "below_gate" if report.verdict.below_gate else "holds",
            "certain": report.verdict.certain,
            "reason": report.verdict.reason,
            "tau_b": newest.tau_b,
            "tau_b_ci": newest.tau_b_ci,
            "gate_tau_b": report.gate,
            "n": newest.end_row - newest.first_row,
            "rows": report.num_rows,
            "dropped_empty": report.num_empty,
            "target_model": report.target_model,
            "coverage": dict(newest.coverage) if calibrated else None,
            "coverage_holds": not report.miscovered if calibrated else None,
            "windows": [asdict(window) for window in report.windows],
            "revision": bundle.manifest.revision,
        }
    )
    return result


def _print(report: Report, figure: str) -> None:
    newest = report.windows[-1]
    print(f"rows              {report.num_rows} ({report.num_empty} of length 0 dropped)")
    print(f"newest window     rows {newest.first_row} to {newest.end_row - 1}")
    for quantile, share in newest.coverage.items():
        mark = "  off: recalibrate" if quantile in report.miscovered else ""
        print(f"coverage of {quantile:5} {share:.3f}{mark}")
    print(f"figure            {figure}")
    state = "BELOW ITS GATE" if report.verdict.below_gate else "holds"
    print(f"verdict           {state}: {report.verdict.reason}")
