"""`python -m training evaluate`: what a bundle is worth on a table of prompts and real lengths."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from scoring_service.bundle import ModelBundle
from scoring_service.errors import ConfigError, DataError, LengthwiseError
from training.command_line import configure_logging, make_parser, without_nan
from training.config import config_from
from training.data.labels import LabelledPrompt, label_prompts, observed, targets
from training.data.prepared import Prepared, prepare
from training.data.records import FieldMap, prompt_hash, read_table, to_records
from training.evaluation import baselines
from training.evaluation.calibration import coverage
from training.evaluation.drift import MIN_ROWS
from training.evaluation.metrics import ceiling, grouped_tau_b, pair_accuracy, tau_b, tau_b_ci
from training.export.scores import score_prompts

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

DESCRIPTION: Final = """Measure a model bundle on a table of prompts and observed lengths.

Rows with the same prompt are repeated samples: the first is ranked, the others give the noise
ceiling. Where there are any, the scores are also compared with the geometric mean of each prompt's
samples (tau_b_geometric_mean), which is less noisy than the one length that a scheduler meets.
Prompts the bundle was trained on are dropped and counted. The baselines are fitted on the
bundle's own training prompts, where its data set can be found.

example:
  python -m training evaluate --bundle mlruns/demo/bundle --data logs.jsonl \\
      --prompt-column text --length-column completion_tokens --json
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Which table, and which of its columns."""

    data: str
    """Parquet, JSONL or CSV file."""
    prompt_column: str = "prompt"
    length_column: tuple[str, ...] = ()
    """Tokens; several columns are repeated samples of each prompt; none takes the column that is
    named as the bundle's label."""
    group_column: str | None = None
    """Task or cluster: tau_b is then given within groups as well."""
    model_column: str | None = None
    """Which model responded; needed where the table holds several."""
    model: str | None = None
    """Only rows of this model."""


def main(argv: Sequence[str]) -> int:
    """Entry point of the command."""
    parser = make_parser("evaluate", "--bundle DIR --data FILE [options]", DESCRIPTION)
    parser.add_argument("--bundle", type=str, required=True, help="folder of the model bundle")
    add_table_arguments(parser)
    parser.add_argument("--data-dir", type=str | None, help="folder of the bundle's own data set")
    parser.add_argument(
        "--target-model", type=str | None, help="calibration to check; default: the bundle's first"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON line")
    arguments = parser.parse_args(list(argv))
    configure_logging()
    bundle = ModelBundle.load(arguments.bundle)
    result = evaluate(
        bundle,
        read_prompts(table_options(arguments), bundle.manifest.label),
        data_dir=arguments.data_dir,
        target_model=arguments.target_model,
    )
    if arguments.json:
        print(json.dumps(result, allow_nan=False))
    else:
        _print(result)
    return 0


def add_table_arguments(parser: ArgumentParser) -> None:
    """The options that say which table is meant; `table_options` reads them back."""
    parser.add_argument("--data", type=str, required=True, help="parquet, JSONL or CSV file")
    parser.add_argument("--prompt-column", type=str, default="prompt")
    parser.add_argument(
        "--length-column",
        type=str,
        nargs="+",
        default=[],
        help="tokens; several are repeated samples of each prompt; default: the bundle's label",
    )
    parser.add_argument("--group-column", type=str | None, help="also give tau_b within groups")
    parser.add_argument("--model-column", type=str | None, help="which model responded")
    parser.add_argument("--model", type=str | None, help="only rows of this model")


def table_options(arguments: Any) -> TableOptions:
    """The table that the command line names."""
    return TableOptions(
        data=arguments.data,
        prompt_column=arguments.prompt_column,
        length_column=tuple(arguments.length_column),
        group_column=arguments.group_column,
        model_column=arguments.model_column,
        model=arguments.model,
    )


def read_prompts(options: TableOptions, label: str) -> list[LabelledPrompt]:
    """The distinct prompts of a table, with the lengths of one model's responses.

    `label` is the column of lengths, where the options name none.

    Raises:
        DataError: the table breaks its schema, or holds several models and none was chosen.
    """
    fields = FieldMap(
        prompt=options.prompt_column,
        output_tokens=options.length_column or (label,),
        model=options.model_column,
        group=options.group_column,
    )
    records, num_empty = to_records(read_table(options.data), fields, path=options.data)
    if options.model is not None:
        records = [record for record in records if record.model == options.model]
    models = sorted({record.model for record in records})
    if len(models) != 1:
        known = ", ".join(models[:9]) if models else f"not {options.model!r}"
        raise DataError(f"the rows are of {known}; choose one with --model", path=options.data)
    if num_empty:
        logger.info("%d rows with a length of 0 dropped", num_empty)
    return label_prompts(records)[0]


def evaluate(
    bundle: ModelBundle,
    prompts: Sequence[LabelledPrompt],
    *,
    data_dir: str | None = None,
    target_model: str | None = None,
) -> dict[str, Any]:
    """Every figure that `--json` prints; None for what is undefined or could not be measured."""
    own = training_data(bundle, data_dir)
    kept, num_seen = unseen(prompts, own)
    if len(kept) < 2:
        raise DataError(f"{len(kept)} prompts to evaluate on after {num_seen} seen in training")
    texts = [item.prompt for item in kept]
    lengths = observed(kept)
    scores = score_prompts(bundle, texts)
    delta = bundle.manifest.training.get("loss", {}).get("delta", 0.2)
    top = ceiling([item.lengths for item in kept])
    repeated = [n for n, item in enumerate(kept) if len(item.lengths) > 1]
    means = [kept[n].target("geometric_mean") for n in repeated]
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
        "coverage": _coverage(bundle, target_model, scores, lengths),
        "baselines": _baselines(own, kept, lengths),
        "revision": bundle.manifest.revision,
    }
    if np.ptp(lengths) == 0:
        logger.warning("tau_b is undefined: all %d lengths are %g", len(kept), lengths[0])
    elif np.ptp(scores) == 0:
        logger.warning("tau_b is undefined: all %d scores are %g", len(kept), scores[0])
    warn_of_few(len(kept))
    cleaned: dict[str, Any] = without_nan(result)
    return cleaned


def warn_of_few(num_prompts: int) -> None:
    """A bootstrap of few prompts draws the same ones again and again: it is too sure."""
    if num_prompts < MIN_ROWS:
        logger.warning(
            "%d prompts tell little, and the interval is too narrow; give %d or more",
            num_prompts,
            MIN_ROWS,
        )


def training_data(bundle: ModelBundle, data_dir: str | None) -> Prepared | None:
    """The bundle's own data set; None, and said, where it cannot be found again."""
    try:
        prepared = prepare(config_from(bundle.manifest.training), data_dir)
    except LengthwiseError as error:
        logger.warning("the bundle's training data is not at hand: %s", error)
        return None
    if prepared.data.card.digest != bundle.manifest.dataset.get("card_sha256"):
        logger.warning("the bundle's training data is not at hand: its card has changed")
        return None
    return prepared


def unseen(
    prompts: Sequence[LabelledPrompt], own: Prepared | None
) -> tuple[list[LabelledPrompt], int]:
    """The prompts that nothing was learnt, chosen or calibrated by, and how many others are."""
    if own is None:
        return list(prompts), 0
    parts = (own.splits.train, own.splits.val, own.splits.calibration)
    seen = {prompt_hash(item.prompt) for part in parts for item in part}
    kept = [item for item in prompts if prompt_hash(item.prompt) not in seen]
    return kept, len(prompts) - len(kept)


def _coverage(
    bundle: ModelBundle,
    target_model: str | None,
    scores: NDArray[np.float64],
    lengths: NDArray[np.float64],
) -> dict[str, float] | None:
    known: Mapping[str, Any] = bundle.manifest.calibration
    if target_model is not None and target_model not in known:
        raise ConfigError(
            f"the bundle has no calibration for {target_model!r}, but for {sorted(known)}; "
            "make one with `python -m training recalibrate`"
        )
    if not known:
        return None
    return coverage(known[target_model or next(iter(known))], scores, lengths)


def _baselines(
    own: Prepared | None, items: Sequence[LabelledPrompt], lengths: NDArray[np.float64]
) -> dict[str, float | None]:
    texts = [item.prompt for item in items]
    found: dict[str, float | None] = {
        "prompt_length": tau_b(baselines.prompt_characters(texts), lengths),
        "lexical_boosting": None,
        "tfidf_ridge": None,
        "group_means": None,
    }
    if own is None:
        return found
    train = [item.prompt for item in own.splits.train]
    learnt = targets(own.splits.train, own.config.data.repeats)
    for name in ("lexical_boosting", "tfidf_ridge"):
        found[name] = tau_b(getattr(baselines, name)(train, learnt, texts), lengths)
    groups, known = [item.group for item in items], [item.group for item in own.splits.train]
    found["group_means"] = tau_b(baselines.group_means(known, learnt, groups), lengths)
    return found


def _print(result: Mapping[str, Any]) -> None:
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
