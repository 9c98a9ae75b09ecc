"""`python -m training evaluate`: figures of a bundle on a table of prompts and observed lengths."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lengthwise.agreement import figure_text, tau_b
from lengthwise.bundle import Manifest
from lengthwise.errors import DataError
from lengthwise.strict_json import finite_or_null
from training.commands.options import BundleOptions, OutputOptions, print_result, print_rows
from training.data.labelled_splits import LabelledSplits
from training.data.labels import LabelledPrompt, TableOptions, observed, read_prompts, texts
from training.data.provenance import training_data, unseen
from training.evaluation import baselines
from training.evaluation.calibration import coverage, target_of
from training.evaluation.ranking_metrics import (
    ceiling,
    grouped_tau_b,
    tau_b_ci,
    warn_of_few,
)
from training.export.bundle_scores import score_prompts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(BundleOptions):
    """The data and the calibration of the bundle."""

    data_dir: str | None = None
    """Folder of the bundle's own data set."""
    target_model: str | None = None
    """Calibration to check; default: the bundle's first."""


def main(options: EvaluateOptions, table: TableOptions, output: OutputOptions) -> None:
    """Measure a model bundle on a table of prompts and observed lengths.

    Rows with the same prompt are repeated samples: the first is ranked, and the mean of the others
    is the ceiling. Prompts of the bundle's own training are dropped and counted, and baselines
    fitted on them, if its data set is at hand.

    example:
      python -m training evaluate --bundle mlruns/demo/bundle --data logs.jsonl \\
          --prompt-column text --length-column completion_tokens --json
    """
    bundle = options.open()
    prompts = read_prompts(table, bundle.manifest.label)
    own = training_data(bundle.manifest, options.data_dir)
    kept, num_seen = unseen(prompts, own)
    if len(kept) < 2:
        raise DataError(f"{len(kept)} prompts to evaluate on after {num_seen} seen in training")
    target = target_of(bundle.manifest, options.target_model)
    result = measure(bundle.manifest, kept, score_prompts(bundle, texts(kept)), target)
    result |= {"num_seen_in_training": None if own is None else num_seen}
    result |= {"baselines": _baselines(own, kept)}
    serve = f"python -m scoring_service serve --bundle {quote(options.bundle)}"
    print_result(result, output, lambda: _print(result), serve)


def measure(
    manifest: Manifest,
    kept: Sequence[LabelledPrompt],
    scores: NDArray[np.float64],
    target_model: str | None,
) -> dict[str, Any]:
    """Return the figures of the scores; None for an undefined or unknown figure."""
    lengths = observed(kept)
    curve = None if target_model is None else manifest.calibration[target_model]
    result = {
        "tau_b": tau_b(scores, lengths),
        "tau_b_ci": tau_b_ci(scores, lengths),
        "n": len(kept),
        "ceiling": ceiling([item.lengths for item in kept]),
        "second_answer": ceiling([item.lengths for item in kept], most=1),
        "tau_b_within_groups": grouped_tau_b(scores, lengths, [item.group for item in kept]),
        "coverage": None if curve is None else coverage(curve, scores, lengths),
        "revision": manifest.revision,
        "banner": manifest.banner,
    }
    if np.ptp(lengths) == 0:
        logger.warning("tau_b is undefined: all %d lengths are %g", len(kept), lengths[0])
    elif np.ptp(scores) == 0:
        logger.warning("tau_b is undefined: all %d scores are %g", len(kept), scores[0])
    warn_of_few(len(kept))
    cleaned: dict[str, Any] = finite_or_null(result)
    return cleaned


def _baselines(
    own: LabelledSplits | None, items: Sequence[LabelledPrompt]
) -> dict[str, float | None]:
    lengths = observed(items)
    found: dict[str, float | None] = {
        "prompt_length": tau_b([len(item.prompt) for item in items], lengths)
    }
    for predict in (baselines.tfidf_ridge, baselines.group_means):
        found[predict.__name__] = None
        if own is not None:
            predicted = predict(own.splits.train, own.config.data.repeats, items)
            found[predict.__name__] = tau_b(predicted, lengths)
    cleaned: dict[str, float | None] = finite_or_null(found)
    return cleaned


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
    print_rows({name: _show(value) for name, value in rows.items()}, 29)


def _show(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(map(_show, value))
    return str(value) if isinstance(value, int | str) else figure_text(value)
