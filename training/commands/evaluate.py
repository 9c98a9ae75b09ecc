"""`python -m training evaluate`: figures of a bundle on a table of prompts and observed lengths."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from shlex import quote
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.agreement import figure_text, tau_b
from lengthwise.bundle import Manifest, ModelBundle
from lengthwise.errors import ConfigError, DataError
from lengthwise.settings import Range, settings
from lengthwise.strict_json import finite_or_null
from training.commands.options import BundleOptions, OutputOptions, print_result, print_rows
from training.data.labelled_splits import LabelledSplits
from training.data.labels import TableOptions, lengths_of, observed, read_prompts, texts
from training.data.provenance import training_data, unseen
from training.data.records import Dataset
from training.evaluation import baselines
from training.evaluation.calibration import coverage, target_of
from training.evaluation.ranking_metrics import (
    MIN_ROWS,
    ceiling,
    grouped_tau_b,
    tau_b_ci,
    tau_b_difference_ci,
)
from training.export.bundle_scores import score_prompts
from training.release.registry import find_bundle

# In place of TYPE_CHECKING, whose block jsonargparse runs: --help would take seconds.
MYPY: Final = False
if MYPY:
    from training.release.tracking import Tracker

logger = logging.getLogger(__name__)
_TIES: Final = 0.005
"""A gain in tau_b by equal scores that is reported."""


@settings
class EvaluateOptions(BundleOptions):
    """The data and the calibration of the bundle."""

    data_dir: str | None = None
    """Folder of the bundle's own data set."""
    target_model: str | None = None
    """Calibration to check; default: the bundle's first."""
    against: str | None = None
    """A second bundle, in the same form, for the paired difference in tau_b on the same prompts."""
    newest: Annotated[int, Range(least=MIN_ROWS)] | None = None
    """Only as many prompts, from the end of the table."""
    gate: bool = False
    """Compare tau_b with the lower end of the bundle's 95% interval on its test prompts; exit
    status 1 if it is below."""
    log: bool = False
    """Log the figures, the table of prompts and a trace of the scoring as an MLflow run."""


def main(options: EvaluateOptions, table: TableOptions, output: OutputOptions) -> int:
    """Measure a model bundle on a table of prompts and observed lengths.

    Rows with the same prompt are repeated samples: the first is ranked, and the mean of the others
    is the ceiling. Prompts of a bundle's own training are dropped and counted, and baselines fitted
    on them, if its data set is at hand. The difference between two bundles has a paired bootstrap
    interval. Without any drift, 1,000 prompts fall below the gate by chance in one check of eight;
    `certain` in the result is true if the whole interval is on that side.

    examples:
      python -m training evaluate --bundle mlruns/demo/bundle --data logs.jsonl \\
          --prompt-column text --length-column completion_tokens --json
      python -m training evaluate --bundle new --against NAME@champion --data run/test.parquet
      python -m training evaluate --bundle NAME@champion --data responses.jsonl --newest 2000 --gate
      python -m training evaluate --bundle run/bundle --data run/test.parquet --log
    """
    if options.log:
        # MLflow takes seconds to import.
        from training.release.tracking import Tracker

        with Tracker(options.mlruns_dir, run_name="evaluate") as tracker:
            result = _evaluate(options, table, tracker) | {"mlflow_run_id": tracker.run_id}
    else:
        result = _evaluate(options, table, None)
    serve = f"python -m scoring_service serve --bundle {quote(options.bundle)}"
    print_result(result, output, lambda: _print(result), serve)
    return int(options.gate and result["gate"]["is_below"])


def _evaluate(
    options: EvaluateOptions, table: TableOptions, tracker: Tracker | None
) -> dict[str, Any]:
    bundle = find_bundle(options.bundle, options.mlruns_dir)
    other = options.against and find_bundle(options.against, options.mlruns_dir)
    target = target_of(bundle.manifest, options.target_model)
    gate = _gate(bundle.manifest) if options.gate else None
    prompts = read_prompts(table, bundle.manifest.label)
    prompts = prompts.skip(max(0, len(prompts) - (options.newest or len(prompts))))
    own = training_data(bundle.manifest, options.data_dir)
    kept, num_seen = unseen(prompts, own)
    if other:
        kept, num_seen_by_other = unseen(kept, training_data(other.manifest, options.data_dir))
        num_seen += num_seen_by_other
    if len(kept) < 2:
        raise DataError(f"{len(kept)} prompts to evaluate on after {num_seen} seen in training")
    inputs = {"bundle": options.bundle, "prompts": len(kept)}
    with tracker.trace("evaluate", **inputs) if tracker else nullcontext():
        scores = score_prompts(bundle, texts(kept))
    result = measure(bundle.manifest, kept, scores, target) | {
        "num_seen_in_training": None if own is None else num_seen,
        "baselines": _baselines(own, kept),
    }
    if other:
        result |= {"against": _difference(other, kept, scores)}
    if gate is not None:
        result |= {"gate": judge(result, gate)}
    if tracker:
        from training.evaluation.report import EVALUATION, evaluation_table

        tracker.log_params({**inputs, "revision": bundle.manifest.revision, "data": table.data})
        low, high = result["tau_b_ci"]
        tracker.log_metrics({**result, "tau_b_low": low, "tau_b_high": high})
        tracker.log_table(EVALUATION, evaluation_table(texts(kept), observed(kept), scores))
        text = f"{bundle.manifest.name} on {len(kept)} prompts of {', '.join(table.data)}"
        tracker.describe(text)
    return result


def _gate(manifest: Manifest) -> float:
    if not (interval := manifest.metrics.get("tau_b_ci")) or interval[0] is None:
        raise ConfigError(f"bundle {manifest.name} has no tau_b of its test prompts; drop --gate")
    return float(interval[0])


def judge(result: Mapping[str, Any], gate: float) -> dict[str, Any]:
    """Return the gate, whether tau_b is below, and whether the whole interval is on that side."""
    if result["tau_b"] is None:
        raise DataError("tau_b is undefined and cannot be compared with the gate; give more rows")
    (low, high), is_below = result["tau_b_ci"], result["tau_b"] < gate
    return {
        "tau_b": gate,
        "is_below": is_below,
        "certain": high < gate if is_below else low >= gate,
    }


def _difference(other: ModelBundle, kept: Dataset, scores: NDArray[np.float64]) -> dict[str, Any]:
    lengths, others = observed(kept), score_prompts(other, texts(kept))
    figures = {
        "revision": other.manifest.revision,
        "tau_b": tau_b(others, lengths),
        "difference": tau_b(scores, lengths) - tau_b(others, lengths),
        "difference_ci": tau_b_difference_ci(scores, others, lengths),
        "order_tau_b": tau_b(scores, others),
    }
    return finite_or_null(figures)


def measure(
    manifest: Manifest, kept: Dataset, scores: NDArray[np.float64], target_model: str | None
) -> dict[str, Any]:
    """Return the figures of the scores; None for an undefined or unknown figure."""
    lengths, samples = observed(kept), lengths_of(kept)
    curve = None if target_model is None else manifest.calibration[target_model]
    result: dict[str, Any] = {
        "tau_b": tau_b(scores, lengths),
        "tau_b_ci": tau_b_ci(scores, lengths),
        "n": len(kept),
        "ceiling": ceiling(samples),
        "second_answer": ceiling(samples, most=1),
        "tau_b_within_groups": grouped_tau_b(scores, lengths, list(kept["group"])),
        "coverage": None if curve is None else coverage(curve, scores, lengths),
        "revision": manifest.revision,
    }
    if np.ptp(lengths) == 0:
        logger.warning("tau_b is undefined: all %d lengths are %g", len(kept), lengths[0])
    elif np.ptp(scores) == 0:
        logger.warning("tau_b is undefined: all %d scores are %g", len(kept), scores[0])
    elif (chance := tau_b(scores, lengths, ties_by_chance=True)) < result["tau_b"] - _TIES:
        text = "tau_b leaves pairs of equal scores out; with ties by chance tau_b is %.3f"
        logger.warning(text, chance)
    if len(kept) < MIN_ROWS:
        text = "%d prompts tell little, and the interval is too narrow; give %d or more"
        logger.warning(text, len(kept), MIN_ROWS)
    return finite_or_null(result)


def _baselines(own: LabelledSplits | None, items: Dataset) -> dict[str, float | None]:
    lengths = observed(items)
    found: dict[str, float | None] = {
        "prompt_length": tau_b([len(prompt) for prompt in texts(items)], lengths)
    }
    for predict in (baselines.tfidf_ridge, baselines.group_means):
        found[predict.__name__] = None
        if own is not None:
            predicted = predict(own.splits.train, own.config.data.repeats, items)
            found[predict.__name__] = tau_b(predicted, lengths, ties_by_chance=True)
    return finite_or_null(found)


def _print(result: Mapping[str, Any]) -> None:
    seen = result["num_seen_in_training"]
    fitted = {} if seen is None else result["baselines"]
    rows = {
        "prompts": result["n"],
        "seen in training": "not checked" if seen is None else seen,
        "tau_b": result["tau_b"],
        "tau_b, 95% interval": result["tau_b_ci"],
        "tau_b within groups": result["tau_b_within_groups"],
        "second answer": result["second_answer"],
        "ceiling, further answers": result["ceiling"],
        "baseline prompt_length": result["baselines"]["prompt_length"],
        **{f"baseline {name}": value for name, value in fitted.items()},
        **{f"coverage of {q}": share for q, share in (result["coverage"] or {}).items()},
    }
    if other := result.get("against"):
        rows |= {"tau_b of the other": other["tau_b"], "difference": other["difference"]}
        rows |= {"difference, 95% interval": other["difference_ci"]}
    if gate := result.get("gate"):
        said = "BELOW" if gate["is_below"] else "holds"
        sure = "" if gate["certain"] else ", which may be chance"
        rows |= {f"gate of {gate['tau_b']:.3f}": f"{said}{sure}"}
    print_rows({name: _show(value) for name, value in rows.items()}, 29)


def _show(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(map(_show, value))
    return str(value) if isinstance(value, int | str) else figure_text(value)
