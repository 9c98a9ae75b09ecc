"""Rows of a table: a ranker trained as an MLflow run of its own and tested, with each seed."""

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from lengthwise.agreement import tau_b
from training.config import LossConfig, TrainConfig
from training.data.labelled_splits import LabelledSplits
from training.data.labels import observed, texts
from training.evaluation.ranking_metrics import tau_b_ci

PAPER_MODELS: Final = ("GPT-4", "Llama 3.1", "DeepSeek-R1")
PAPER_METHODS: Final[Mapping[str, tuple[float, float, float]]] = {
    "pairs": (0.96, 0.75, 0.61),
    "listmle": (0.69, 0.67, 0.50),
    "l1": (0.70, 0.64, 0.30),
}
PAPER_UNFILTERED: Final = (0.93, 0.71, 0.57)

logger = logging.getLogger(__name__)
Row = dict[str, Any]


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
            trained = train(
                config, encoder, [labelled.splits], Path(folder), tracker.lightning_logger()
            )
        test = labelled.splits.test
        ids = tokenize(trained.tokenizer, texts(test)).ids
        scores, lengths = in_buckets(trained.scorer, ids), observed(test)
        value, cpu_s = tau_b(scores, lengths), round(trained.train_cpu_s, 3)
        tracker.log_metrics({"tau_b": value, "train_cpu_s": cpu_s})
    return {
        "method": method,
        "objective": config.loss.objective,
        "delta": config.loss.delta,
        "backbone": config.encoder.backbone,
        "tau_b": value,
        "tau_b_ci": tau_b_ci(scores, lengths),
        "paper": paper_figures(config.loss),
        "encoder_passes": trained.num_encoded,
        "cpu_s": cpu_s,
        "history": trained.history,
        "mlflow_run_id": tracker.run_id,
    }


def cpu_to_reach(ours: Row, theirs: Row) -> dict[str, float]:
    """Return CPU seconds of each to the best validation tau_b of `theirs`; NaN if not reached."""
    goal = max(point["val/tau_b"] for point in theirs["history"])
    ours_s, theirs_s = (
        next((p["cpu_s"] for p in row["history"] if p["val/tau_b"] >= goal), float("nan"))
        for row in (ours, theirs)
    )
    return {"val_tau_b": goal, "ours": ours_s, "theirs": theirs_s}


def paper_figures(loss: LossConfig) -> Sequence[float] | None:
    """Return the paper's tau_b on its three models; None if it has no such row."""
    if loss.objective == "pairs" and loss.delta == 0:
        return PAPER_UNFILTERED
    return PAPER_METHODS.get(loss.objective)
