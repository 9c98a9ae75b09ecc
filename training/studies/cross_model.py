"""`python -m training cross-model`: train on one model's lengths, rank another model's."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lengthwise.bundle import ModelBundle
from lengthwise.errors import DataError, at_least
from training.commands.options import OutputOptions, print_result
from training.evaluation.transfer import (
    MIN_MODELS,
    cross_model,
    of_bundle,
    read_lengths,
    spread,
    taus,
    transfer,
)


@dataclass(frozen=True, kw_only=True)
class CrossModelOptions:
    """The models of the matrix, and what is added to it."""

    out: Path
    """Folder for the table and the figure."""
    dataset: str = "alpaca-eval"
    """A data set of many models."""
    models: int = 24
    """Number of models, 3 or more, spread over the names."""
    sources: tuple[str, ...] = ()
    """SET or SET=MODEL."""
    bundle: str | None = None
    """Also test this ranker."""
    data_dir: str | None = None
    """Folder that holds the data sets."""

    def __post_init__(self) -> None:
        at_least("models", self.models, MIN_MODELS)


def main(options: CrossModelOptions, output: OutputOptions) -> None:
    """Measure how well lengths learnt from one model rank the lengths of another.

    Rows are the models trained on, columns the models tested on. The learner is ridge regression on
    frozen sentence vectors, cross-validated over prompts, so that hundreds of cells cost a minute.
    Beside each cell is the result of copying the row's true lengths, and per column that of the
    consensus of all other models. --sources adds a row per further data set, trained on its own
    prompts; SET=MODEL names the model of the matrix that gave its lengths, whose copy is then its
    bound. --bundle adds a trained ranker, on prompts it has not seen.

    Writes OUT/cross_model.csv (one line per cell) and OUT/cross_model.png.

    examples:
      python -m training cross-model --dataset arena-hard --models 24 --out mlruns/cross-arena
      python -m training cross-model --dataset alpaca-eval --models 24 --out mlruns/cross \\
          --sources alpaca-davinci003=text_davinci_003 alpaca-vicuna7b=vicuna-7b \\
          --bundle mlruns/multi/bundle
    """
    lengths = read_lengths(options.dataset, options.data_dir)
    chosen = spread(lengths, options.models)
    result = cross_model(chosen, lengths)
    for source in options.sources:
        name, _, model = source.partition("=")
        if model and model not in lengths:
            raise DataError(f"--sources names model {model!r}, which this data set does not hold")
        result["transfer"][name] = {
            "learnt": transfer(name, chosen, options.data_dir),
            "copy": taus(lengths[model].to_numpy(), chosen) if model else None,
        }
    if options.bundle is not None:
        bundle = ModelBundle.load(options.bundle)
        result["bundle"] = of_bundle(bundle, lengths, options.dataset)
        result["banner"] = bundle.manifest.banner
    _write(options.out, result)
    print_result(result, output, lambda: _print(result, options.out))


def _write(out: Path, result: Mapping[str, Any]) -> None:
    from training.evaluation.figures import transfer_matrix

    models = result["models"]
    unknown = [math.nan] * len(models)
    further = result["transfer"].values()
    sources = [*models, *result["transfer"]]
    learnt = [*result["learnt"], *(row["learnt"] for row in further)]
    copied = [*result["copy"], *(row["copy"] or unknown for row in further)]
    out.mkdir(parents=True, exist_ok=True)
    cells = {
        "trained_on": np.repeat(sources, len(models)),
        "tested_on": models * len(sources),
        "tau_b": np.ravel(learnt),
        "tau_b_of_copy": np.ravel(copied),
        "tau_b_of_consensus": result["consensus"] * len(sources),
    }
    pd.DataFrame(cells).to_csv(out / "cross_model.csv", index=False)
    panels = {
        "learnt from prompts": [*learnt, result["consensus"]],
        "copy of the true lengths (bound)": [*copied, result["consensus"]],
    }
    figure = transfer_matrix(panels, [*sources, "consensus of the others"], models)
    figure.savefig(out / "cross_model.png", dpi=120, bbox_inches="tight")


def _print(result: Mapping[str, Any], out: Path) -> None:
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
