"""Rows of a table: a ranker trained as an MLflow run of its own and tested, with each seed."""

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

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


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One trained ranker of a table."""

    method: str
    objective: str
    delta: float
    backbone: str
    tau_b: float
    """Mean over the seeds."""
    tau_b_ci: tuple[float, float]
    """Over prompts, of the first seed."""
    paper: Sequence[float] | None
    """tau_b of the paper on its three models; None if it has no such row."""
    encoder_passes: int
    cpu_s: float
    history: Sequence[Mapping[str, float]]
    """Training curve of the first seed."""
    mlflow_run_id: str
    """Run of the first seed."""
    tau_b_by_seed: tuple[float, ...]


def train_seeds(
    method: str, config: TrainConfig, labelled: LabelledSplits, mlruns_dir: str, seeds: int
) -> TableRow:
    """Return one row: the same training with the seeds from 0 to `seeds` - 1."""
    rows = [
        train_row(method, replace(config, seed=seed), labelled, mlruns_dir) for seed in range(seeds)
    ]
    taus = tuple(row.tau_b for row in rows)
    cpu_s = float(np.mean([row.cpu_s for row in rows]))
    return replace(rows[0], tau_b=float(np.mean(taus)), tau_b_by_seed=taus, cpu_s=cpu_s)


def train_row(
    method: str, config: TrainConfig, labelled: LabelledSplits, mlruns_dir: str
) -> TableRow:
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
    return TableRow(
        method=method,
        objective=config.loss.objective,
        delta=config.loss.delta,
        backbone=config.encoder.backbone,
        tau_b=value,
        tau_b_by_seed=(value,),
        tau_b_ci=tau_b_ci(scores, lengths),
        paper=_paper(config.loss),
        encoder_passes=trained.num_encoded,
        cpu_s=cpu_s,
        history=trained.history,
        mlflow_run_id=tracker.run_id,
    )


def cpu_to_reach(ours: TableRow, theirs: TableRow) -> dict[str, float]:
    """Return CPU seconds of each to the best validation tau_b of `theirs`; NaN if not reached."""
    goal = max(point["val/tau_b"] for point in theirs.history)
    reached = [p["cpu_s"] for p in ours.history if p["val/tau_b"] >= goal]
    needed = [p["cpu_s"] for p in theirs.history if p["val/tau_b"] >= goal]
    return {"val_tau_b": goal, "ours": reached[0] if reached else float("nan"), "theirs": needed[0]}


def _paper(loss: LossConfig) -> Sequence[float] | None:
    if loss.objective == "pairs" and loss.delta == 0:
        return PAPER_UNFILTERED
    return PAPER_METHODS.get(loss.objective)
