"""`python -m training compare`: two rankers on the same prompts."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lengthwise.agreement import figure_text, tau_b
from lengthwise.bundle import ModelBundle
from lengthwise.command_line.options import POSITIONAL
from lengthwise.errors import DataError
from lengthwise.strict_json import finite_or_null
from training.commands.options import OutputOptions, StoreOptions, print_result, print_rows
from training.data.labels import LabelledPrompt, TableOptions, observed, read_prompts, texts
from training.data.provenance import training_data, unseen
from training.evaluation.ranking_metrics import tau_b_ci, tau_b_difference_ci, warn_of_few
from training.export.bundle_scores import score_prompts
from training.release.registry import find_bundle, show_tau_b

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CompareOptions(StoreOptions):
    """Two rankers."""

    a: str = field(metadata=POSITIONAL)
    """Bundle folder, NAME/VERSION or NAME@champion."""
    b: str = field(metadata=POSITIONAL)
    """Second ranker, in the same form."""
    data_dir: str | None = None
    """Folder of the rankers' own data sets."""


def main(options: CompareOptions, table: TableOptions, output: OutputOptions) -> None:
    """Compare two rankers on the same prompts and observed lengths.

    The default of --length-column is the label of A. The interval of the difference is a paired
    bootstrap over prompts, much tighter than two separate intervals. Prompts of a ranker's training
    stay in and are counted, if its data set is at hand.

    example:
      python -m training compare ranker-new alpaca-vicuna7b@champion --data run/test.parquet
    """
    pair = [(name, find_bundle(name, options.mlruns_dir)) for name in (options.a, options.b)]
    prompts = read_prompts(table, pair[0][1].manifest.label)
    if len(prompts) < 2:
        raise DataError("a single prompt has no order; give two or more", path=table.data[0])
    result = compare(pair, prompts, options.data_dir)
    print_result(result, output, lambda: _print(result))


def compare(
    pair: Sequence[tuple[str, ModelBundle]], prompts: Sequence[LabelledPrompt], data_dir: str | None
) -> dict[str, Any]:
    """Return tau_b of both and of their difference (a - b); None for an undefined figure."""
    lengths = observed(prompts)
    scores = [score_prompts(bundle, texts(prompts)) for _, bundle in pair]
    owns = [training_data(bundle.manifest, data_dir) for _, bundle in pair]
    figures = [
        {
            "bundle": reference,
            "revision": bundle.manifest.revision,
            "label": bundle.manifest.label,
            "tau_b": tau_b(values, lengths),
            "tau_b_ci": tau_b_ci(values, lengths),
            "num_seen_in_training": own and unseen(prompts, own)[1],
        }
        for (reference, bundle), values, own in zip(pair, scores, owns, strict=True)
    ]
    difference = tau_b(scores[0], lengths) - tau_b(scores[1], lengths)
    low, high = tau_b_difference_ci(scores[0], scores[1], lengths)
    result = {
        "n": len(prompts),
        "a": figures[0],
        "b": figures[1],
        "difference": difference,
        "difference_ci": (low, high),
        "better": "a" if low > 0 else "b" if high < 0 else None,
        "order_tau_b": tau_b(scores[0], scores[1]),
        "banner": next((b.manifest.banner for _, b in pair if b.manifest.banner), None),
    }
    if math.isnan(difference):
        logger.warning("tau_b is undefined: all lengths, or all scores of a ranker, are equal")
    warn_of_few(len(prompts))
    cleaned: dict[str, Any] = finite_or_null(result)
    return cleaned


def _print(result: Mapping[str, Any]) -> None:
    rows: dict[str, object] = {"prompts": result["n"]}
    for name in ("a", "b"):
        figures = result[name]
        rows[f"tau_b of {name}"] = f"{show_tau_b(figures):22}  {figures['bundle']}"
        if (seen := figures["num_seen_in_training"]) != 0:
            count = "not checked" if seen is None else f"{seen} prompts"
            rows[f"  of {name}"] = f"seen in training: {count}"
    low, high = (figure_text(value, "+.4f") for value in result["difference_ci"])
    verdict = {"a": "a ranks better", "b": "b ranks better", None: "no difference is proven"}
    said, rows["a - b"] = verdict[result["better"]], "undefined"
    if result["difference"] is None:
        said = "not compared: a tau_b is undefined"
    else:
        rows["a - b"] = f"{result['difference']:+.4f} (95% {low} to {high}), paired"
    print_rows(rows, 15)
    print(said)
