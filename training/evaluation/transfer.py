"""Rankers trained on one model's lengths and tested on another's, with a cheap learner.

The learner is ridge regression on frozen sentence vectors, cross-validated over prompts.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lengthwise.agreement import tau_b
from lengthwise.bundle import SYNTHETIC, ModelBundle
from lengthwise.errors import DataError
from training.config import config_from
from training.data.cards import load_data
from training.data.labels import is_held_out, label_prompts, targets, texts
from training.data.records import prompt_hash
from training.data.splits import position
from training.export.bundle_scores import score_prompts

FOLDS: Final = 5
MIN_MODELS: Final = 3
"""With two, the consensus of the others is a copy of the other."""


def read_lengths(dataset: str, data_dir: str | None) -> pd.DataFrame:
    """Return the lengths of a data set by prompt (row) and model (column); NaN for no answer."""
    prompts = label_prompts(load_data(dataset, data_dir).records)
    models = sorted({item.model for item in prompts})
    if len(models) < MIN_MODELS:
        raise DataError(
            f"{dataset} holds {len(models)} models; a matrix needs {MIN_MODELS} or more"
        )
    rows = {item.key: item.prompt for item in prompts}
    lengths: dict[str, dict[str, int]] = {model: {} for model in models}
    for item in prompts:
        lengths[item.model][item.key] = item.observed
    return pd.DataFrame(lengths, list(rows), dtype=float).set_axis(list(rows.values()))


def spread(lengths: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the table of `count` models, evenly spread over their sorted names."""
    chosen = np.unique(np.linspace(0, lengths.shape[1] - 1, count).round().astype(int))
    return lengths.iloc[:, chosen]


def cross_model(chosen: pd.DataFrame, everyone: pd.DataFrame) -> dict[str, Any]:
    """Return matrices (source x target) of the learner and of copied lengths, and the consensus."""
    features, copied = embed(list(chosen.index)), chosen.to_numpy().T
    learnt = [predict(features, column) for column in copied]
    return {
        "models": list(chosen),
        "num_prompts": len(chosen),
        "learnt": [taus(predicted, chosen) for predicted in learnt],
        "copy": [taus(column, chosen) for column in copied],
        "consensus": [_consensus(everyone, str(name)) for name in chosen],
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


def transfer(dataset: str, target: pd.DataFrame, data_dir: str | None) -> list[float]:
    """Return tau_b per target model of the learner trained on another data set (of one model)."""
    unwanted = {prompt_hash(prompt) for prompt in target.index}
    data = load_data(dataset, data_dir)
    if data.card.id == SYNTHETIC != dataset:
        raise DataError(f"{dataset} is not at hand, and invented lengths tell nothing about models")
    ordered = sorted(label_prompts(data.records), key=lambda item: position(item.prompt, 0))
    train = [item for item in ordered if item.key not in unwanted][:3000]
    model = _fit(embed(texts(train)), targets(train, "geometric_mean"))
    return taus(model.predict(embed(list(target.index))), target)


def of_bundle(bundle: ModelBundle, lengths: pd.DataFrame, dataset: str) -> dict[str, Any]:
    """Return tau_b of a ranker per model, on unseen prompts, with the mean of unseen models."""
    config = config_from(bundle.manifest.training)
    names = {config.data.dataset, *(name.partition("*")[0] for name in config.data.also)}
    if dataset in names:
        where = np.array([position(prompt, config.split.seed) for prompt in lengths.index])
        lengths = lengths[where < config.split.test_fraction]
    scores = score_prompts(bundle, list(lengths.index))
    found = dict(zip(map(str, lengths), taus(scores, lengths), strict=True))
    unseen = [
        name
        for name in found
        if dataset not in names or is_held_out(name, config.data.held_out_models)
    ]
    consensus = [_consensus(lengths, name) for name in unseen]
    return {
        "num_prompts": len(lengths),
        "num_unseen_models": len(unseen),
        "mean_tau_b_unseen_models": float(np.mean([found[name] for name in unseen])),
        "mean_consensus_unseen_models": float(np.mean(consensus)),
        "mean_tau_b_all_models": float(np.mean(list(found.values()))),
        "tau_b": found,
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
    from sklearn.linear_model import RidgeCV

    return RidgeCV(alphas=np.logspace(-2, 2, 9)).fit(features, np.log(tokens))


def _consensus(lengths: pd.DataFrame, model: str) -> float:
    """Return tau_b of the mean standardised log length of all other models, a bound."""
    logs = np.log(np.array(lengths, order="C"))  # The order of the sums, and their last bit.
    standard = (logs - np.nanmean(logs, axis=0)) / np.nanstd(logs, axis=0)
    others = np.delete(standard, list(lengths).index(model), axis=1)
    return taus(np.nanmean(others, axis=1), lengths[[model]])[0]


def taus(scores: NDArray[np.float64], lengths: pd.DataFrame) -> list[float]:
    """Return tau_b of the scores of the prompts (rows) per model (column), without NaN rows."""
    known = ~np.isnan(scores)[:, None] & lengths.notna().to_numpy()
    columns = zip(lengths.to_numpy().T, known.T, strict=True)
    return [tau_b(scores[rows], tokens[rows]) for tokens, rows in columns]
