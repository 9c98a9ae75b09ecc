"""`python -m training evaluate`: figures of a bundle on a table of prompts and observed lengths."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lengthwise.agreement import tau_b
from lengthwise.bundle import Manifest, ModelBundle
from lengthwise.command_line.program import print_banner, print_next
from lengthwise.errors import DataError
from lengthwise.strict_json import finite_or_null
from training.commands.options import OutputOptions, StoreOptions, print_result
from training.data.labelled_splits import LabelledSplits
from training.data.labels import LabelledPrompt, observed, texts
from training.data.logged_prompts import TableOptions, read_prompts
from training.data.provenance import training_data, unseen
from training.evaluation import baselines
from training.evaluation.calibration import coverage, target_of
from training.evaluation.ranking_metrics import (
    ceiling,
    grouped_tau_b,
    pair_accuracy,
    tau_b_ci,
    warn_of_few,
)
from training.evaluation.report import ranker_page
from training.export.bundle_scores import score_prompts
from training.release.registry import find_bundle

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """The bundle to measure."""

    bundle: str
    """Folder, NAME/VERSION or NAME@champion."""
    data_dir: str | None = None
    """Folder of the bundle's own data set."""
    target_model: str | None = None
    """Calibration to check; default: the bundle's first."""
    report: Path | None = None
    """Page to write, e.g. ranker.html: figures, coverage, and the prompts with the worst errors."""


def main(
    options: EvaluateOptions, table: TableOptions, store: StoreOptions, output: OutputOptions
) -> None:
    """Measure a model bundle on a table of prompts and observed lengths.

    Rows with the same prompt are repeated samples: the first is ranked, the others give the noise
    ceiling. If there are any, the scores are also compared with the geometric mean of each prompt's
    samples (tau_b_geometric_mean), which is less noisy than the one length that a scheduler meets.
    Prompts the bundle was trained on are dropped and counted. The baselines are fitted on the
    bundle's own training prompts, if its data set can be found.

    example:
      python -m training evaluate --bundle mlruns/demo/bundle --data logs.jsonl \\
          --prompt-column text --length-column completion_tokens --json
    """
    bundle = find_bundle(options.bundle, store.mlruns_dir)
    prompts = read_prompts(table, bundle.manifest.label)
    result, measured = evaluate(bundle, prompts, options)
    if options.report is not None:
        _write_report(options.report, bundle.manifest, result, measured)

    def show() -> None:
        _print(result)
        print_next(f"python -m scoring_service serve --bundle {quote(options.bundle)}")

    print_result(result, output, show)


@dataclass(frozen=True)
class _Measured:
    """Prompts that the ranker was not trained on, with their scores and observed lengths."""

    prompts: Sequence[LabelledPrompt]
    scores: NDArray[np.float64]
    lengths: NDArray[np.float64]


def evaluate(
    bundle: ModelBundle, prompts: Sequence[LabelledPrompt], options: EvaluateOptions
) -> tuple[dict[str, Any], _Measured]:
    """Return the figures that `--json` prints, and what they are of.

    A figure that is undefined or unknown is None.
    """
    own = training_data(bundle.manifest, options.data_dir)
    kept, num_seen = unseen(prompts, own)
    if len(kept) < 2:
        raise DataError(f"{len(kept)} prompts to evaluate on after {num_seen} seen in training")
    lengths = observed(kept)
    scores = score_prompts(bundle, texts(kept))
    delta = bundle.manifest.training.get("loss", {}).get("delta", 0.2)
    top = ceiling([item.lengths for item in kept])
    repeated = [n for n, item in enumerate(kept) if len(item.lengths) > 1]
    means = [kept[n].target("geometric_mean") for n in repeated]
    target, curves = target_of(bundle.manifest, options.target_model), bundle.manifest.calibration
    value = tau_b(scores, lengths)
    result: dict[str, Any] = {
        "tau_b": value,
        "tau_b_ci": tau_b_ci(scores, lengths),
        "n": len(kept),
        "num_seen_in_training": None if own is None else num_seen,
        "pair_accuracy": pair_accuracy(scores, lengths),
        "pair_accuracy_delta": pair_accuracy(scores, lengths, delta=delta),
        "delta": delta,
        "ceiling": top,
        "tau_b_over_ceiling": value / top,
        "tau_b_geometric_mean": tau_b(scores[repeated], means),
        "tau_b_geometric_mean_ci": tau_b_ci(scores[repeated], means),
        "num_repeated": len(repeated),
        "tau_b_within_groups": grouped_tau_b(scores, lengths, [item.group for item in kept]),
        "coverage": None if target is None else coverage(curves[target], scores, lengths),
        "baselines": _baselines(own, kept, lengths),
        "revision": bundle.manifest.revision,
        "banner": bundle.manifest.banner,
    }
    if np.ptp(lengths) == 0:
        logger.warning("tau_b is undefined: all %d lengths are %g", len(kept), lengths[0])
    elif np.ptp(scores) == 0:
        logger.warning("tau_b is undefined: all %d scores are %g", len(kept), scores[0])
    warn_of_few(len(kept))
    return finite_or_null(result), _Measured(kept, scores, lengths)


def _write_report(
    path: Path, manifest: Manifest, result: Mapping[str, Any], measured: _Measured
) -> None:
    """Write the page.

    Raises:
        DataError: it cannot be written.
    """
    others = result["baselines"] | {"a second sample of the model itself": result["ceiling"]}
    page = ranker_page(
        manifest,
        rankers={"this ranker": (result["tau_b"], result["tau_b_ci"])}
        | {name.replace("_", " "): (tau, None) for name, tau in others.items() if tau is not None},
        coverage=result["coverage"],
        prompts=texts(measured.prompts),
        scores=measured.scores,
        lengths=measured.lengths,
    )
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot be written ({error}); choose another place", path=path) from error


def _baselines(
    own: LabelledSplits | None, items: Sequence[LabelledPrompt], lengths: NDArray[np.float64]
) -> dict[str, float | None]:
    found: dict[str, float | None] = dict.fromkeys(
        ("prompt_length", "lexical_boosting", "tfidf_ridge", "group_means")
    )
    found["prompt_length"] = tau_b(baselines.prompt_characters(items), lengths)
    if own is not None:
        fitting = own.splits.train, own.config.data.repeats, items
        for predict in (baselines.lexical_boosting, baselines.tfidf_ridge, baselines.group_means):
            found[predict.__name__] = tau_b(predict(*fitting), lengths)
    return found


def _print(result: Mapping[str, Any]) -> None:
    print_banner(result["banner"])
    rows = {
        "prompts": result["n"],
        "seen in training": result["num_seen_in_training"],
        "tau_b": result["tau_b"],
        "tau_b, 95% interval": result["tau_b_ci"],
        "tau_b within groups": result["tau_b_within_groups"],
        "noise ceiling": result["ceiling"],
        "tau_b / ceiling": result["tau_b_over_ceiling"],
        "tau_b, mean of samples": result["tau_b_geometric_mean"],
        "pair accuracy": result["pair_accuracy"],
        f"pair accuracy, delta {result['delta']}": result["pair_accuracy_delta"],
        **{f"baseline {name}": value for name, value in result["baselines"].items()},
        **{f"coverage of {q}": share for q, share in (result["coverage"] or {}).items()},
    }
    for name, value in rows.items():
        print(f"{name:28} {_show(value)}")


def _show(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return " to ".join(map(_show, value))
    return f"{value:.3f}" if isinstance(value, float) else str(value)
