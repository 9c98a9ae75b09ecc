"""`python -m training cross-model`: train on one model's lengths, rank another model's."""

from __future__ import annotations

import csv
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scoring_service.bundle import ModelBundle
from scoring_service.errors import ConfigError, DataError
from training.command_line import configure_logging, make_parser, without_nan
from training.config import config_from
from training.data.cards import load_data
from training.data.labels import is_held_out, label_prompts
from training.data.records import prompt_hash
from training.data.splits import position
from training.evaluation.metrics import tau_b
from training.export.scores import score_prompts

DESCRIPTION: Final = """Measure how well lengths learnt from one model rank the lengths of another.

Rows are the models trained on, columns the models tested on. The learner is ridge regression on
frozen sentence vectors, cross-validated over prompts, so that hundreds of cells cost a minute.
Beside each cell is what copying the row's true lengths would reach, and per column what the
consensus of all other models would. --sources adds a row per further data set, trained on its own
prompts; SET=MODEL says which model of the matrix gave its lengths, and what copying that one would
reach is then its bound. --bundle adds a trained ranker, on prompts it has not seen.

Writes OUT/cross_model.csv (one line per cell) and OUT/cross_model.png.

examples:
  python -m training cross-model --dataset arena-hard --models 24 --out mlruns/cross-arena
  python -m training cross-model --dataset alpaca-eval --models 24 --out mlruns/cross \\
      --sources alpaca-davinci003=text_davinci_003 alpaca-vicuna7b=vicuna-7b \\
      --bundle mlruns/multi/bundle
"""
FOLDS: Final = 5
MIN_MODELS: Final = 3
"""With two, the consensus of the others is a copy of the other."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lengths:
    """Lengths of many models on the same prompts."""

    prompts: Sequence[str]
    models: Sequence[str]
    tokens: NDArray[np.float64]
    """Shape (N prompts, M models); NaN where a model did not answer."""


def main(argv: Sequence[str]) -> int:
    """Entry point of the command."""
    parser = make_parser("cross-model", "--out DIR [options]", DESCRIPTION)
    parser.add_argument("--out", type=str, required=True, help="folder for the table and figure")
    parser.add_argument("--dataset", type=str, default="alpaca-eval", help="a set of many models")
    parser.add_argument(
        "--models", type=int, default=24, help="how many, 3 or more, spread over the names"
    )
    parser.add_argument("--sources", type=str, nargs="+", default=[], help="SET or SET=MODEL")
    parser.add_argument("--bundle", type=str | None, help="also test this ranker")
    parser.add_argument("--data-dir", type=str | None, help="folder that holds the data sets")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON line")
    arguments = parser.parse_args(list(argv))
    configure_logging()
    if arguments.models < MIN_MODELS:
        raise ConfigError(f"models is {arguments.models}; use {MIN_MODELS} or more")
    lengths = read_lengths(arguments.dataset, arguments.data_dir)
    chosen = spread(lengths, arguments.models)
    result = cross_model(chosen, lengths)
    for source in arguments.sources:
        name, _, model = source.partition("=")
        result["transfer"][name] = {
            "learnt": transfer(name, chosen, arguments.data_dir),
            "copy": copy_of(model, chosen, lengths) if model else None,
        }
    if arguments.bundle is not None:
        bundle = ModelBundle.load(arguments.bundle)
        result["bundle"] = of_bundle(bundle, lengths, arguments.dataset)
    _write(Path(arguments.out), chosen, result)
    if arguments.json:
        print(json.dumps(without_nan(result), allow_nan=False))
    else:
        _print(result, arguments.out)
    return 0


def read_lengths(dataset: str, data_dir: str | None) -> Lengths:
    """The prompt x model table of a data set.

    Raises:
        DataError: it holds fewer than MIN_MODELS models.
    """
    prompts, _ = label_prompts(load_data(dataset, data_dir).records)
    models = sorted({item.model for item in prompts})
    if len(models) < MIN_MODELS:
        raise DataError(
            f"{dataset} holds {len(models)} models; a matrix needs {MIN_MODELS} or more"
        )
    rows = {prompt_hash(item.prompt): item.prompt for item in prompts}
    row_of = {key: number for number, key in enumerate(rows)}
    column_of = {name: number for number, name in enumerate(models)}
    tokens = np.full((len(rows), len(models)), np.nan)
    for item in prompts:
        tokens[row_of[prompt_hash(item.prompt)], column_of[item.model]] = item.observed
    return Lengths(list(rows.values()), models, tokens)


def spread(lengths: Lengths, count: int) -> Lengths:
    """`count` models, evenly spread over their sorted names; the same every time."""
    chosen = np.unique(np.linspace(0, len(lengths.models) - 1, count).round().astype(int))
    models = [lengths.models[n] for n in chosen]
    return Lengths(lengths.prompts, models, lengths.tokens[:, chosen])


def cross_model(chosen: Lengths, everyone: Lengths) -> dict[str, Any]:
    """Matrices (source x target) of the learner and of the copy, and the consensus per target."""
    features = embed(chosen.prompts)
    learnt = [predict(features, column) for column in chosen.tokens.T]
    copied = list(chosen.tokens.T)
    return {
        "models": list(chosen.models),
        "num_prompts": len(chosen.prompts),
        "learnt": [[_tau(p, target) for target in chosen.tokens.T] for p in learnt],
        "copy": [[_tau(c, target) for target in chosen.tokens.T] for c in copied],
        "consensus": [_consensus(everyone, name) for name in chosen.models],
        "transfer": {},
    }


def predict(features: NDArray[np.float64], tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cross-validated ridge predictions of the log lengths, every prompt by a fold without it."""
    from sklearn.linear_model import RidgeCV

    known = ~np.isnan(tokens)
    fold = np.arange(len(tokens)) % FOLDS
    predictions = np.empty(len(tokens))
    for number in range(FOLDS):
        train = known & (fold != number)
        model = RidgeCV(alphas=np.logspace(-2, 2, 9)).fit(features[train], np.log(tokens[train]))
        predictions[fold == number] = model.predict(features[fold == number])
    return predictions


def transfer(dataset: str, target: Lengths, data_dir: str | None, limit: int = 3000) -> list[float]:
    """tau_b per target model of the learner trained on another data set (of one model)."""
    from sklearn.linear_model import RidgeCV

    unwanted = {prompt_hash(prompt) for prompt in target.prompts}
    items, _ = label_prompts(load_data(dataset, data_dir).records)
    ordered = sorted(items, key=lambda item: position(item.prompt, 0))
    train = [item for item in ordered if prompt_hash(item.prompt) not in unwanted][:limit]
    model = RidgeCV(alphas=np.logspace(-2, 2, 9)).fit(
        embed([item.prompt for item in train]),
        np.log([item.target("geometric_mean") for item in train]),
    )
    predictions = model.predict(embed(target.prompts))
    return [_tau(predictions, column) for column in target.tokens.T]


def copy_of(model: str, target: Lengths, everyone: Lengths) -> list[float]:
    """tau_b per target model of that model's own lengths: the bound of a perfect predictor of it.

    Raises:
        DataError: no such model.
    """
    if model not in everyone.models:
        raise DataError(f"--sources names model {model!r}, which this data set does not hold")
    copied = everyone.tokens[:, list(everyone.models).index(model)]
    return [_tau(copied, column) for column in target.tokens.T]


def of_bundle(bundle: ModelBundle, lengths: Lengths, dataset: str) -> dict[str, Any]:
    """tau_b of a ranker per model, on prompts it has not seen, apart for models it has not seen."""
    config = config_from(bundle.manifest.training)
    names = {config.data.dataset, *(name.partition("*")[0] for name in config.data.also)}
    rows = np.arange(len(lengths.prompts))
    if dataset in names:
        where = np.array([position(prompt, config.split.seed) for prompt in lengths.prompts])
        rows = np.flatnonzero(where < config.split.test_fraction)
    scores = score_prompts(bundle, [lengths.prompts[int(n)] for n in rows])
    taus = {
        name: _tau(scores, column)
        for name, column in zip(lengths.models, lengths.tokens[rows].T, strict=True)
    }
    unseen = [
        name
        for name in taus
        if dataset not in names or is_held_out(name, config.data.held_out_models)
    ]
    consensus = [_consensus(lengths, name, rows) for name in unseen]
    return {
        "num_prompts": len(rows),
        "num_unseen_models": len(unseen),
        "mean_tau_b_unseen_models": float(np.mean([taus[name] for name in unseen])),
        "mean_consensus_unseen_models": float(np.mean(consensus)),
        "mean_tau_b_all_models": float(np.mean(list(taus.values()))),
        "tau_b": taus,
        "unseen_models": unseen,
    }


def embed(prompts: Sequence[str]) -> NDArray[np.float64]:
    """Mean-pooled vectors of the default backbone as it comes. Shape (N, H)."""
    import torch

    from training.data.buckets import bucket, pad
    from training.ranker.data_module import tokenize
    from training.ranker.encoder import build_scorer, find_backbone

    source = find_backbone("auto").source
    scorer, tokenizer = build_scorer(source, "mean", seed=0, max_prompt_tokens=128)
    ids = tokenize(tokenizer, prompts).ids
    vectors = np.empty((len(ids), scorer.head.in_features))
    with torch.inference_mode():
        for members in bucket(ids, 16):
            padded, mask = pad([ids[n] for n in members], 0)
            pooled = scorer.eval().pool(torch.from_numpy(padded), torch.from_numpy(mask))
            vectors[members] = pooled.numpy()
    return vectors


def _consensus(lengths: Lengths, model: str, rows: NDArray[np.int64] | None = None) -> float:
    """tau_b of the mean standardised log length of all other models: a bound for any ranker."""
    chosen = lengths.tokens if rows is None else lengths.tokens[rows]
    logs = np.log(chosen)
    standard = (logs - np.nanmean(logs, axis=0)) / np.nanstd(logs, axis=0)
    column = list(lengths.models).index(model)
    others = np.delete(standard, column, axis=1)
    return _tau(np.nanmean(others, axis=1), chosen[:, column])


def _tau(scores: NDArray[np.float64], tokens: NDArray[np.float64]) -> float:
    known = ~np.isnan(tokens) & ~np.isnan(scores)
    return tau_b(scores[known], tokens[known])


def _write(out: Path, chosen: Lengths, result: Mapping[str, Any]) -> None:
    from training.evaluation.figures import transfer_matrix

    unknown = [math.nan] * len(chosen.models)
    further = result["transfer"].values()
    sources = [*chosen.models, *result["transfer"]]
    learnt = [*result["learnt"], *(row["learnt"] for row in further)]
    copied = [*result["copy"], *(row["copy"] or unknown for row in further)]
    out.mkdir(parents=True, exist_ok=True)
    with (out / "cross_model.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["trained_on", "tested_on", "tau_b", "tau_b_of_copy", "tau_b_of_consensus"])
        for i, source in enumerate(sources):
            for j, target in enumerate(chosen.models):
                writer.writerow(
                    [source, target, learnt[i][j], copied[i][j], result["consensus"][j]]
                )
    panels = {
        "learnt from prompts": [*learnt, result["consensus"]],
        "copy of the true lengths (bound)": [*copied, result["consensus"]],
    }
    figure = transfer_matrix(panels, [*sources, "consensus of the others"], chosen.models)
    figure.savefig(out / "cross_model.png", dpi=120, bbox_inches="tight")


def _print(result: Mapping[str, Any], out: str) -> None:
    learnt, copied = np.array(result["learnt"]), np.array(result["copy"])
    other = ~np.eye(len(learnt), dtype=bool)
    print(f"{len(learnt)} models, {result['num_prompts']} prompts: mean tau_b")
    print(f"trained on the tested model itself      {np.diag(learnt).mean():.3f}")
    print(f"trained on another model                {learnt[other].mean():.3f}")
    print(f"copying another model's true lengths    {copied[other].mean():.3f}")
    print(f"consensus of all other models           {np.mean(result['consensus']):.3f}")
    for name, row in result["transfer"].items():
        bound = f"  (copying its true lengths {np.mean(row['copy']):.3f})" if row["copy"] else ""
        print(f"trained on {name:28} {np.mean(row['learnt']):.3f}{bound}")
    if "bundle" in result:
        bundle = result["bundle"]
        print(
            f"the bundle, {bundle['num_unseen_models']} models it never saw, "
            f"{bundle['num_prompts']} prompts it never saw   "
            f"{bundle['mean_tau_b_unseen_models']:.3f} "
            f"(consensus there {bundle['mean_consensus_unseen_models']:.3f})"
        )
    print(f"table and figure in {out}")
