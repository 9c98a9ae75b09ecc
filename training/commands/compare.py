"""`python -m training compare`: which of two rankers orders the same prompts better."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from scoring_service.bundle import ModelBundle
from scoring_service.errors import DataError
from training.command_line import configure_logging, make_parser, without_nan
from training.commands.evaluate import training_data, unseen, warn_of_few
from training.commands.registry import add_store_arguments, find_bundle, show_tau_b
from training.data.labels import LabelledPrompt, label_prompts, observed
from training.data.records import FieldMap, read_table, to_records
from training.evaluation.metrics import tau_b, tau_b_ci, tau_b_difference_ci
from training.export.scores import score_prompts

DESCRIPTION: Final = """Compare two rankers on the same prompts and observed lengths.

A and B are bundle folders, or NAME/VERSION or NAME@champion in the model registry. The interval of
the difference is a paired bootstrap over prompts: much tighter than two intervals side by side.
Prompts that a ranker has learnt from stay in and are counted, where its data set can be found.

example:
  python -m training compare ranker-new alpaca-vicuna7b@champion --data run/test.parquet
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Contender:
    """One of the two: its bundle and what the user called it."""

    reference: str
    bundle: ModelBundle


def main(argv: Sequence[str]) -> int:
    """Entry point of the command."""
    parser = make_parser("compare", "A B --data FILE [options]", DESCRIPTION)
    parser.add_argument("a", type=str, help="bundle folder, NAME/VERSION or NAME@champion")
    parser.add_argument("b", type=str, help="the same")
    parser.add_argument("--data", type=str, required=True, help="parquet, JSONL or CSV file")
    parser.add_argument("--prompt-column", type=str, default="prompt")
    parser.add_argument("--length-column", type=str | None, help="tokens; default: the label of A")
    parser.add_argument("--data-dir", type=str | None, help="folder of the rankers' own data sets")
    add_store_arguments(parser)
    arguments = parser.parse_args(list(argv))
    configure_logging()
    a, b = (
        Contender(reference, find_bundle(reference, arguments.mlruns_dir))
        for reference in (arguments.a, arguments.b)
    )
    length_column = arguments.length_column or a.bundle.manifest.label
    fields = FieldMap(prompt=arguments.prompt_column, output_tokens=(length_column,))
    records, _ = to_records(read_table(arguments.data), fields, path=arguments.data)
    prompts, _ = label_prompts(records)
    if len(prompts) < 2:
        raise DataError("a single prompt has no order; give two or more", path=arguments.data)
    result = compare(a, b, prompts, arguments.data_dir)
    if arguments.json:
        print(json.dumps(result, allow_nan=False))
    else:
        _print(result)
    return 0


def compare(
    a: Contender, b: Contender, prompts: Sequence[LabelledPrompt], data_dir: str | None = None
) -> dict[str, Any]:
    """tau_b of both and of their difference (a - b); None for what is undefined."""
    texts = [item.prompt for item in prompts]
    lengths = observed(prompts)
    scores = [score_prompts(contender.bundle, texts) for contender in (a, b)]
    figures = [
        {
            "bundle": contender.reference,
            "revision": contender.bundle.manifest.revision,
            "label": contender.bundle.manifest.label,
            "tau_b": tau_b(values, lengths),
            "tau_b_ci": tau_b_ci(values, lengths),
            "num_seen_in_training": _num_seen(contender.bundle, prompts, data_dir),
        }
        for contender, values in zip((a, b), scores, strict=True)
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
    }
    if math.isnan(difference):
        logger.warning("tau_b is undefined: all lengths, or all scores of a ranker, are equal")
    warn_of_few(len(prompts))
    cleaned: dict[str, Any] = without_nan(result)
    return cleaned


def _num_seen(
    bundle: ModelBundle, prompts: Sequence[LabelledPrompt], data_dir: str | None
) -> int | None:
    """How many of the prompts the bundle has learnt from; None where that cannot be checked."""
    own = training_data(bundle, data_dir)
    return None if own is None else unseen(prompts, own)[1]


def _print(result: dict[str, Any]) -> None:
    print(f"prompts        {result['n']}")
    for name in ("a", "b"):
        figures = result[name]
        print(f"tau_b of {name}     {show_tau_b(figures):22}  {figures['bundle']}")
        seen = figures["num_seen_in_training"]
        if seen != 0:
            what = "not checked" if seen is None else f"{seen} prompts"
            print(f"               seen in training: {what}")
    if result["difference"] is not None:
        low, high = result["difference_ci"]
        print(f"a - b          {result['difference']:+.4f} (95% {low:+.4f} to {high:+.4f}), paired")
    verdict = {"a": "a ranks better", "b": "b ranks better", None: "no difference is proven"}
    print(verdict[result["better"]])
