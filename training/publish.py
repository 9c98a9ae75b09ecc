"""A trained ranker -> model bundle, held-out prompts, MLflow run, registry."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoring_service.bundle import FP32, INT8, TOKENIZER, Manifest, ModelBundle
from scoring_service.scorer import OnnxScorer
from training import figures
from training.assess import assess
from training.calibration import MIN_ROWS, calibrate, coverage
from training.champion import Verdict, judge
from training.config import TrainConfig
from training.data import observed, targets
from training.encoder import save_scorer
from training.export import torch_scores, write_models
from training.learning import Trained
from training.prepared import Prepared
from training.records import PromptResponse, write_records
from training.scores import onnx_scores
from training.splits import Splits
from training.tracking import Tracker

NUM_GOLDEN = 32
logger = logging.getLogger(__name__)


def write_bundle(
    config: TrainConfig, prepared: Prepared, trained: Trained, folder: Path, run_id: str
) -> tuple[ModelBundle, NDArray[np.float64]]:
    """Export to ONNX, measure on the test split, write the bundle.

    Returns the bundle and the scores of the test prompts.
    """
    splits = prepared.splits
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.parent) as work:
        models = Path(work)
        parity, int8_drop = write_models(
            trained.scorer,
            models,
            val_ids=trained.data.val.ids,
            val_lengths=targets(splits.val, config),
            max_tau_b_drop=config.int8_max_tau_b_drop,
        )
        if not (models / INT8).is_file():
            logger.warning("INT8 left out: it loses %.4f tau_b on the validation split", int8_drop)
        trained.tokenizer.save(str(models / TOKENIZER))
        metrics, scores = assess(config, splits, trained, models, parity)
        truncated = trained.data.train.num_truncated + trained.data.val.num_truncated
        calibration = _calibration(models, splits, trained)
        for entry in calibration.values():
            metrics["coverage"] = coverage(entry, scores, observed(splits.test))
        manifest = Manifest(
            name=prepared.data.card.id,
            label=config.data.label,
            label_tokenizer=prepared.data.card.tokenizer,
            max_prompt_tokens=(trained.tokenizer.truncation or {})["max_length"],
            training=asdict(config),
            dataset=prepared.describe() | {"truncated_prompts": truncated},
            metrics=metrics | {"int8_val_tau_b_drop": int8_drop},
            history=trained.history,
            calibration=calibration,
            golden=_golden(splits, trained),
            mlflow_run_id=run_id,
        )

        def fill(target: Path) -> None:
            shutil.copytree(models, target, dirs_exist_ok=True)

        return ModelBundle.write(folder, manifest, fill), scores


def _golden(splits: Splits, trained: Trained) -> dict[str, float]:
    """Scores that a service must reproduce before it serves the bundle."""
    few = slice(NUM_GOLDEN)
    scores = torch_scores(trained.scorer, trained.data.val.ids[few])
    prompts = [item.prompt for item in splits.val[few]]
    return dict(zip(prompts, scores.tolist(), strict=True))


def _calibration(models: Path, splits: Splits, trained: Trained) -> dict[str, Any]:
    """Length curves of the model that was learnt from, by the validation split.

    Only the sample that tests compare with: others may be of another temperature, and their spread
    is not the one that is asked for (it cost up to 3 points of coverage).
    """
    if len(splits.val) < MIN_ROWS:
        logger.warning("no calibration: the validation split has fewer than %d responses", MIN_ROWS)
        return {}
    served = next(models / name for name in (INT8, FP32) if (models / name).is_file())
    scores = onnx_scores(OnnxScorer(served), trained.data.val.ids)
    return {splits.val[0].model or "default": calibrate(scores, observed(splits.val))}


def write_test_prompts(path: Path, splits: Splits) -> None:
    """Write the held-out prompts with the length that tests compare with; whole or not at all."""
    work = path.with_name(f".{path.name}")
    write_records(
        work,
        (
            PromptResponse(prompt=item.prompt, output_tokens=item.observed, model=item.model)
            for item in splits.test
        ),
    )
    os.replace(work, path)


def log_results(
    tracker: Tracker,
    bundle: ModelBundle,
    trained: Trained,
    scores: NDArray[np.float64],
    splits: Splits,
) -> None:
    """Log the bundle, a checkpoint that `export` can start from, the figures and the metrics."""
    metrics = bundle.manifest.metrics
    tracker.log_folder(bundle.path, "bundle")
    with tempfile.TemporaryDirectory() as folder:
        save_scorer(Path(folder), trained.scorer, trained.tokenizer)
        tracker.log_folder(Path(folder), "checkpoint")
    tracker.log_metrics({k: v for k, v in metrics.items() if isinstance(v, int | float)})
    curve = figures.training_curve(trained.history, metrics["tau_b_tfidf_ridge"])
    tracker.log_figure(curve, "training_curve")
    title = f"{bundle.manifest.name}: {len(splits.test)} test prompts, tau_b {metrics['tau_b']:.3f}"
    scatter = figures.predicted_against_real(scores, observed(splits.test), title)
    tracker.log_figure(scatter, "predicted_against_real")


def register(tracker: Tracker, bundle: ModelBundle, splits: Splits) -> tuple[str, Verdict]:
    """Add the bundle to the registry; it becomes champion only by beating the present one.

    Returns the new version and the verdict.
    """
    name = bundle.manifest.name
    prompts = [item.prompt for item in splits.test]
    verdict = judge(bundle, tracker.champion(name), prompts, observed(splits.test))
    version = tracker.register(name, {"verdict": verdict.reason})
    if verdict.promoted:
        tracker.promote(name, version)
    return version, verdict
