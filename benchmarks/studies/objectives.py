"""`python -m benchmarks objectives`: the paper's tables on the data at hand.

Each row is a ranker, trained with each seed as an MLflow run of its own and tested.
"""

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from lengthwise.agreement import figure_text, tau_b
from lengthwise.settings import Count, settings
from training.commands.options import OutputOptions, StoreOptions, print_result, print_rows
from training.config import LossConfig, TrainConfig
from training.data.labelled_splits import LabelledSplits, load_splits
from training.data.labels import lengths_of, observed, texts
from training.evaluation.baselines import tfidf_ridge
from training.evaluation.ranking_metrics import ceiling, tau_b_ci
from training.recipes import recipe

METHODS: Final[Mapping[str, str]] = {
    "pointwise L1": "l1",
    "pointwise L1 on the log": "log-l1",
    "listwise ListMLE": "listmle",
    "RankNet": "ranknet",
    "explicit pairs (PARS)": "pairs",
    "in-batch all pairs (ours)": "all-pairs",
}
PAPER_TAU_B: Final[Mapping[tuple[str, bool], tuple[float, float, float]]] = {
    ("pairs", True): (0.96, 0.75, 0.61),
    ("pairs", False): (0.93, 0.71, 0.57),
    ("listmle", True): (0.69, 0.67, 0.50),
    ("l1", True): (0.70, 0.64, 0.30),
}
"""The paper's tau_b on its three models by the objective, with the delta filter and without."""

logger = logging.getLogger(__name__)
Row = dict[str, Any]


@settings
class ReproduceOptions:
    """The data, and the size of the rows."""

    data_dir: str | None = None
    """Folder that holds the data sets."""
    dataset: str = "alpaca-vicuna7b"
    prompts: int = 3000
    """Training prompts per row."""
    epochs: int = 2
    seeds: Count = 1
    """Trainings per row, from seed 0."""
    threads: int | None = None
    """CPU threads of torch."""
    backbone: str = "auto"
    """Encoder of every row."""


def main(options: ReproduceOptions, store: StoreOptions, output: OutputOptions) -> None:
    """Print the tables of PARS (Kendall tau_b) with ours beside the paper's.

    Every row of ours is trained here, on the same prompts, with the same number of encoder passes,
    and tested on the same held-out prompts; its MLflow run is named. The paper's columns are its
    own data (Alpaca prompts answered by GPT-4, Llama 3.1 and DeepSeek-R1), which is not public:
    compare orders and gains, not values. With --seeds a row is the mean over that many trainings.

    example:
      python -m benchmarks objectives --data-dir DIR --prompts 3000 --epochs 2 --seeds 3
    """
    labelled = load_splits(_protocol(options), options.data_dir)
    result = _tables(options, labelled, store.mlruns_dir) | {
        "protocol": asdict(labelled.config),
        "dataset": labelled.describe(),
    }
    print_result(result, output, lambda: _print(result))


def _protocol(options: ReproduceOptions) -> TrainConfig:
    base = recipe("demo")
    return replace(
        base,
        data=replace(base.data, dataset=options.dataset),
        split=replace(base.split, train_prompts=options.prompts),
        encoder=replace(base.encoder, backbone=options.backbone),
        loss=LossConfig(log_length_weight=0),
        threads=options.threads,
    ).with_trainer(max_epochs=options.epochs)


def _tables(options: ReproduceOptions, labelled: LabelledSplits, mlruns_dir: str) -> dict[str, Any]:
    protocol, test = labelled.config, labelled.splits.test

    def train(method: str, **changes: Any) -> Row:
        config = replace(protocol, loss=replace(protocol.loss, **changes), name=f"table: {method}")
        return train_seeds(method, config, labelled, mlruns_dir, options.seeds)

    methods = [train(method, objective=objective) for method, objective in METHODS.items()]
    *_, pairs, ours = methods
    unfiltered = [
        train(f"{row['method']}, delta 0", objective=row["objective"], delta=0.0)
        for row in (pairs, ours)
    ]
    return {
        "methods": methods,
        "delta": [pairs, ours, *unfiltered],
        "tau_b_tfidf_ridge": tau_b(
            tfidf_ridge(labelled.splits.train, protocol.data.repeats, test), observed(test)
        ),
        "ceiling": ceiling(lengths_of(test)),
        "second_answer": ceiling(lengths_of(test), most=1),
    }


def train_seeds(
    method: str, config: TrainConfig, labelled: LabelledSplits, mlruns_dir: str, seeds: int
) -> Row:
    """Return one row: the same training with the seeds from 0 to `seeds` - 1.

    tau_b and cpu_s are means over the seeds; everything else is of the first seed.
    """
    rows = [
        train_row(method, replace(config, seed=seed), labelled, mlruns_dir) for seed in range(seeds)
    ]
    means = {name: float(np.mean([row[name] for row in rows])) for name in ("tau_b", "cpu_s")}
    return rows[0] | means | {"tau_b_by_seed": [row["tau_b"] for row in rows]}


def train_row(method: str, config: TrainConfig, labelled: LabelledSplits, mlruns_dir: str) -> Row:
    """Train one ranker as its own MLflow run and test it."""
    from training.ranker.data_module import tokenize
    from training.ranker.encoder import in_buckets
    from training.ranker.training_loop import load_encoder, train
    from training.release.tracking import Tracker

    logger.info("training %s", method)
    encoder = load_encoder(config, 1)
    with Tracker(mlruns_dir, run_name=config.name) as tracker:
        tracker.log_params(asdict(config))
        tracker.log_data(labelled)
        with tempfile.TemporaryDirectory(prefix="lengthwise-row-") as folder:
            logger_of_run = tracker.lightning_logger()
            trained = train(config, encoder, [labelled.splits], Path(folder), logger_of_run)
        ids = tokenize(trained.tokenizer, texts(labelled.splits.test)).ids
        scores, lengths = in_buckets(trained.scorer, ids), observed(labelled.splits.test)
        value, cpu_s = tau_b(scores, lengths), round(trained.train_cpu_s, 3)
        tracker.log_metrics({"tau_b": value, "train_cpu_s": cpu_s})
    return {
        "method": method,
        "objective": config.loss.objective,
        "delta": config.loss.delta,
        "backbone": config.encoder.backbone,
        "tau_b": value,
        "tau_b_ci": tau_b_ci(scores, lengths),
        "paper": PAPER_TAU_B.get((config.loss.objective, config.loss.delta > 0)),
        "encoder_passes": trained.num_encoded,
        "cpu_s": cpu_s,
        "mlflow_run_id": tracker.run_id,
    }


def _print(result: Mapping[str, Any]) -> None:
    _print_rows("Table II: ranking methods", result["methods"])
    _print_rows("Table IV: the delta filter", result["delta"])
    dataset, protocol = result["dataset"], result["protocol"]
    epochs = protocol["trainer"]["max_epochs"]
    print(
        f"ours: {dataset['id']}, {dataset['train_prompts']} training prompts, "
        f"{epochs} epochs, {dataset['test_prompts']} test prompts, seeds from "
        f"{protocol['seed']}; the paper: Alpaca answered by GPT-4, Llama 3.1, DeepSeek-R1"
    )
    others = {
        "TF-IDF + ridge on the same prompts": "tau_b_tfidf_ridge",
        "the model's own second answer": "second_answer",
        "ceiling, the mean of further answers": "ceiling",
    }
    print_rows({name: figure_text(result[key]) for name, key in others.items()}, 40)


def _print_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    print(f"{title}: tau_b\n{'':34}{'ours':>7}  95% interval   passes   CPU-s  paper, by model")
    for row in rows:
        low, high = map(figure_text, row["tau_b_ci"])
        paper = " ".join(f"{value:.2f}" for value in row["paper"] or ()) or "-"
        print(
            f"{row['method']:34}{figure_text(row['tau_b']):>7}  {low} to {high}"
            f"{row['encoder_passes']:9}{row['cpu_s']:8.0f}  {paper}"
        )
        if len(row["tau_b_by_seed"]) > 1:
            print(f"{'':34}by seed {' '.join(map(figure_text, row['tau_b_by_seed']))}")
    print()
