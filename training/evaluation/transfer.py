"""Rankers trained on one model's lengths and tested on another's, with a cheap learner.

The learner is ridge regression on frozen sentence vectors, cross-validated over prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scoring_service.agreement import tau_b
from scoring_service.bundle import ModelBundle
from scoring_service.errors import DataError
from training.config import config_from
from training.data.cards import load_data
from training.data.labels import is_held_out, label_prompts, targets, texts
from training.data.records import prompt_hash
from training.data.splits import position
from training.export.scores import score_prompts

FOLDS: Final = 5
MIN_MODELS: Final = 3
"""With two, the consensus of the others is a copy of the other."""


@dataclass(frozen=True)
class LengthTable:
    """Lengths of many models on the same prompts."""

    prompts: Sequence[str]
    models: Sequence[str]
    tokens: NDArray[np.float64]
    """Shape (N prompts, M models); NaN for no answer."""


def read_lengths(dataset: str, data_dir: str | None) -> LengthTable:
    """Return the prompt x model table of a data set."""
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
    return LengthTable(list(rows.values()), models, tokens)


def spread(lengths: LengthTable, count: int) -> LengthTable:
    """Return the table of `count` models, evenly spread over their sorted names."""
    chosen = np.unique(np.linspace(0, len(lengths.models) - 1, count).round().astype(int))
    models = [lengths.models[n] for n in chosen]
    return LengthTable(lengths.prompts, models, lengths.tokens[:, chosen])


def cross_model(chosen: LengthTable, everyone: LengthTable) -> dict[str, Any]:
    """Return matrices (source x target) of the learner and of copied lengths, and the consensus."""
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
    """Return ridge predictions of the log lengths, each prompt's from folds without it."""
    known = ~np.isnan(tokens)
    fold = np.arange(len(tokens)) % FOLDS
    predictions = np.empty(len(tokens))
    for number in range(FOLDS):
        train = known & (fold != number)
        model = _fit(features[train], tokens[train])
        predictions[fold == number] = model.predict(features[fold == number])
    return predictions


def transfer(
    dataset: str, target: LengthTable, data_dir: str | None, limit: int = 3000
) -> list[float]:
    """Return tau_b per target model of the learner trained on another data set (of one model)."""
    unwanted = {prompt_hash(prompt) for prompt in target.prompts}
    items, _ = label_prompts(load_data(dataset, data_dir).records)
    ordered = sorted(items, key=lambda item: position(item.prompt, 0))
    train = [item for item in ordered if prompt_hash(item.prompt) not in unwanted][:limit]
    model = _fit(embed(texts(train)), targets(train, "geometric_mean"))
    predictions = model.predict(embed(target.prompts))
    return [_tau(predictions, column) for column in target.tokens.T]


def copy_of(model: str, target: LengthTable, everyone: LengthTable) -> list[float]:
    """Return tau_b per target model of that model's own lengths, the bound for its predictors."""
    if model not in everyone.models:
        raise DataError(f"--sources names model {model!r}, which this data set does not hold")
    copied = everyone.tokens[:, list(everyone.models).index(model)]
    return [_tau(copied, column) for column in target.tokens.T]


def of_bundle(bundle: ModelBundle, lengths: LengthTable, dataset: str) -> dict[str, Any]:
    """Return tau_b of a ranker per model, on unseen prompts, with the mean of unseen models."""
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
    """Return mean-pooled vectors of the pretrained default backbone. Shape (N, H)."""
    # torch takes seconds to import; most callers need no vectors.
    from training.ranker.data_module import tokenize
    from training.ranker.encoder import build_scorer, find_backbone, in_buckets

    source = find_backbone("auto").source
    scorer, tokenizer = build_scorer(source, "mean", seed=0, max_prompt_tokens=128)
    return in_buckets(scorer.eval().pool, tokenize(tokenizer, prompts).ids)


def _fit(features: NDArray[np.float64], tokens: NDArray[np.float64]) -> Any:
    """Fit ridge regression to the log lengths."""
    from sklearn.linear_model import RidgeCV

    return RidgeCV(alphas=np.logspace(-2, 2, 9)).fit(features, np.log(tokens))


def _consensus(lengths: LengthTable, model: str, rows: NDArray[np.int64] | None = None) -> float:
    """Return tau_b of the mean standardised log length of all other models, a bound."""
    chosen = lengths.tokens if rows is None else lengths.tokens[rows]
    logs = np.log(chosen)
    standard = (logs - np.nanmean(logs, axis=0)) / np.nanstd(logs, axis=0)
    column = list(lengths.models).index(model)
    others = np.delete(standard, column, axis=1)
    return _tau(np.nanmean(others, axis=1), chosen[:, column])


def _tau(scores: NDArray[np.float64], tokens: NDArray[np.float64]) -> float:
    known = ~np.isnan(tokens) & ~np.isnan(scores)
    return tau_b(scores[known], tokens[known])
