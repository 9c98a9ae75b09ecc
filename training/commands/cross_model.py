"""`python -m training cross-model`: train on one model's lengths, rank another model's.

The learner is ridge regression on frozen sentence vectors, cross-validated over prompts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lengthwise.agreement import figure_text, tau_b
from lengthwise.bundle import ModelBundle
from lengthwise.errors import DataError
from lengthwise.settings import Range, settings
from training.commands.options import OutputOptions, print_result, print_rows
from training.config import config_from, times_of
from training.data.cards import load_data
from training.data.labels import is_held_out, label_prompts, observed
from training.data.splits import position
from training.export.bundle_scores import score_prompts

FOLDS: Final = 5
MIN_MODELS: Final = 3
"""With two, the consensus of the others is a copy of the other."""


@settings
class CrossModelOptions:
    """The models of the matrix, and what is added to it."""

    out: Path
    """Folder for the table."""
    dataset: str = "alpaca-eval"
    """A data set of many models."""
    models: Annotated[int, Range(least=MIN_MODELS)] = 24
    """Number of models, 3 or more, spread over the names."""
    bundle: str | None = None
    """Also test this ranker."""
    data_dir: str | None = None
    """Folder that holds the data sets."""


def main(options: CrossModelOptions, output: OutputOptions) -> None:
    """Measure how well lengths learnt from one model rank the lengths of another.

    Rows are the models trained on, columns the models tested on. The learner is ridge regression on
    frozen sentence vectors, cross-validated over prompts, so that hundreds of cells cost a minute.
    Beside each cell is the result of copying the row's true lengths, and per column that of the
    consensus of all other models. --bundle adds a trained ranker, on prompts it has not seen.

    Writes OUT/cross_model.csv, one line per cell.

    examples:
      python -m training cross-model --dataset arena-hard --models 24 --out mlruns/cross-arena
      python -m training cross-model --out mlruns/cross --bundle mlruns/multi/bundle
    """
    lengths = read_lengths(options.dataset, options.data_dir)
    result = matrices(spread(lengths, options.models), lengths)
    if options.bundle is not None:
        bundle = ModelBundle.load(options.bundle)
        result["bundle"] = of_bundle(bundle, lengths, options.dataset)
    _write(options.out, result)
    print_result(result, output, lambda: _print(result, options.out))


def read_lengths(dataset: str, data_dir: str | None) -> pd.DataFrame:
    """Return the lengths of a data set by prompt (row) and model (column); NaN for no answer."""
    prompts = label_prompts(load_data(dataset, data_dir).records)
    models = sorted(prompts.unique("model"))
    if len(models) < MIN_MODELS:
        raise DataError(
            f"{dataset} holds {len(models)} models; a matrix needs {MIN_MODELS} or more"
        )
    frame = prompts.select_columns(["prompt", "key", "model"]).to_pandas()
    rows = frame.drop_duplicates("key", keep="last").set_index("key")["prompt"]
    table: pd.DataFrame = frame.assign(length=observed(prompts)).pivot(
        index="key", columns="model", values="length"
    )
    table = table.loc[frame["key"].unique()]
    return table.set_axis(rows[table.index].tolist())


def spread(lengths: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the table of `count` models, evenly spread over their sorted names."""
    chosen = np.unique(np.linspace(0, lengths.shape[1] - 1, count).round().astype(int))
    return lengths.iloc[:, chosen]


def matrices(chosen: pd.DataFrame, everyone: pd.DataFrame) -> dict[str, Any]:
    """Return matrices (source x target) of the learner and of copied lengths, and the consensus."""
    features, copied = embed(list(chosen.index)), chosen.to_numpy().T
    learnt = [predict(features, column) for column in copied]
    return {
        "models": list(chosen),
        "num_prompts": len(chosen),
        "learnt": [taus(predicted, chosen) for predicted in learnt],
        "copy": [taus(column, chosen) for column in copied],
        "consensus": [_consensus(everyone, str(name)) for name in chosen],
    }


def predict(features: NDArray[np.float64], tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ridge predictions of the log lengths, each prompt's from folds without it."""
    from sklearn.linear_model import RidgeCV

    known = ~np.isnan(tokens)
    fold = np.arange(len(tokens)) % FOLDS
    predictions = np.empty(len(tokens))
    for number in range(FOLDS):
        train = known & (fold != number)
        model = RidgeCV(alphas=np.logspace(-2, 2, 9)).fit(features[train], np.log(tokens[train]))
        predictions[fold == number] = model.predict(features[fold == number])
    return predictions


def of_bundle(bundle: ModelBundle, lengths: pd.DataFrame, dataset: str) -> dict[str, Any]:
    """Return tau_b of a ranker per model, on unseen prompts, with the mean of unseen models."""
    config = config_from(bundle.manifest.training)
    names = {config.data.dataset, *(times_of(name)[0] for name in config.data.also)}
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
    return {
        "num_prompts": len(lengths),
        "num_unseen_models": len(unseen),
        "mean_tau_b_unseen_models": float(np.mean([found[name] for name in unseen])),
        "mean_consensus_unseen_models": float(np.mean([_consensus(lengths, n) for n in unseen])),
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


def _write(out: Path, result: Mapping[str, Any]) -> None:
    models = result["models"]
    out.mkdir(parents=True, exist_ok=True)
    cells = {
        "trained_on": np.repeat(models, len(models)),
        "tested_on": models * len(models),
        "tau_b": np.ravel(result["learnt"]),
        "tau_b_of_copy": np.ravel(result["copy"]),
        "tau_b_of_consensus": result["consensus"] * len(models),
    }
    pd.DataFrame(cells).to_csv(out / "cross_model.csv", index=False)


def _print(result: Mapping[str, Any], out: Path) -> None:
    learnt, copied = np.array(result["learnt"]), np.array(result["copy"])
    other = ~np.eye(len(learnt), dtype=bool)
    print(f"{len(learnt)} models, {result['num_prompts']} prompts: mean tau_b")
    means = {
        "trained on the tested model itself": np.diag(learnt).mean(),
        "trained on another model": learnt[other].mean(),
        "copying another model's true lengths": copied[other].mean(),
        "consensus of all other models": np.mean(result["consensus"]),
    }
    print_rows({name: figure_text(value) for name, value in means.items()}, 40)
    if "bundle" in result:
        bundle = result["bundle"]
        print(
            f"the bundle, {bundle['num_unseen_models']} models it never saw, "
            f"{bundle['num_prompts']} prompts it never saw   "
            f"{figure_text(bundle['mean_tau_b_unseen_models'])} "
            f"(consensus there {figure_text(bundle['mean_consensus_unseen_models'])})"
        )
    print(f"table in {out}")
