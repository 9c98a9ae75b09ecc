"""A trained ranker -> test figures, bundle, test prompts, MLflow run."""

import logging
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lengthwise.agreement import figure_text, tau_b
from lengthwise.bundle import DIRECTION, FP32, INT8, TOKENIZER, Manifest, ModelBundle
from lengthwise.strict_json import finite_or_null
from scoring_service.ranker.scorer import OnnxScorer
from training.config import TrainConfig
from training.data.labelled_splits import LabelledSplits
from training.data.labels import lengths_of, observed, side_by_side, targets, texts
from training.data.records import Dataset
from training.data.splits import Splits
from training.evaluation.baselines import group_means, tfidf_ridge
from training.evaluation.calibration import MIN_ROWS, calibrate, coverage
from training.evaluation.ranking_metrics import ceiling, grouped_tau_b, tau_b_ci
from training.evaluation.report import EVALUATION, evaluation_table
from training.export.bundle_scores import onnx_scores
from training.export.onnx_models import describe, write_models
from training.ranker.data_module import tokenize
from training.ranker.encoder import in_buckets, save_scorer
from training.ranker.training_loop import Trained
from training.release.registry import figures_of, show_tau_b, tags_of
from training.release.tracking import CHECKPOINT_MODEL, Tracker

BUNDLE: Final = "bundle"
"""Folder of the first head's bundle; the others' end in the label or the data set."""
CHECKPOINT: Final = "checkpoint"
"""Folder of the first head's checkpoint; the others' stand in a folder of the same end."""
NUM_GOLDEN: Final = 32
NUM_SAMPLED: Final = 256
"""Training prompts that give INT8 its scales."""
logger = logging.getLogger(__name__)


def write_bundle(
    labelled: LabelledSplits, trained: Trained, folder: Path, run_id: str, name: str
) -> tuple[ModelBundle, NDArray[np.float64]]:
    """Export to ONNX, measure on the test split, write the bundle; `trained` is of one label.

    Returns the bundle and the scores of the test prompts.
    """
    config, splits, tokenizer = labelled.config, labelled.splits, trained.tokenizer
    parts = splits.train.take(min(NUM_SAMPLED, len(splits.train))), splits.val, splits.test
    sample_ids, val_ids, test_ids = (tokenize(tokenizer, texts(part)).ids for part in parts)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.parent) as work:
        models = Path(work)
        parity = write_models(
            trained.scorer,
            models,
            sample_ids=sample_ids,
            val_ids=val_ids,
            val_lengths=targets(splits.val, config.data.repeats),
            max_tau_b_drop=config.int8_max_tau_b_drop,
        )
        names = [name for name in (INT8, FP32) if (models / name).is_file()]
        if INT8 not in names and "int8_val_tau_b_drop" in parity:
            text = "INT8 left out: its loss of tau_b on the validation split is %s"
            logger.warning(text, figure_text(parity["int8_val_tau_b_drop"], ".4f"))
        tokenizer.save(str(models / TOKENIZER))
        max_prompt_tokens = (tokenizer.truncation or {})["max_length"]
        facts = {"name": name, "label": config.data.label, "score_direction": DIRECTION}
        for model in names:
            describe(models / model, facts | {"max_prompt_tokens": str(max_prompt_tokens)})
        scorers = {name: OnnxScorer(models / name) for name in names}
        scores = {name: onnx_scores(scorer, test_ids) for name, scorer in scorers.items()}
        served = scores[names[0]]
        metrics = assess(config, splits, served, scores[FP32], [len(ids) for ids in test_ids]) | {
            **finite_or_null(parity),
            "has_int8": INT8 in scores,
            "encoder_passes": trained.num_encoded,
            "train_cpu_s": round(trained.train_cpu_s, 3),
        }
        calibration = _calibration(scorers[names[0]], splits.calibration, tokenizer)
        for curves in calibration.values():
            metrics["coverage"] = coverage(curves, served, observed(splits.test))
        golden = in_buckets(trained.scorer, val_ids[:NUM_GOLDEN]).tolist()
        manifest = Manifest(
            name=name,
            label=config.data.label,
            label_tokenizer=labelled.data.card.tokenizer,
            max_prompt_tokens=max_prompt_tokens,
            training=asdict(config),
            dataset=labelled.describe()
            | {"truncated_prompts": trained.num_truncated}
            | ({"teacher": trained.teacher} if trained.teacher else {}),
            metrics=metrics,
            history=trained.history,
            calibration=calibration,
            golden=dict(zip(splits.val["prompt"][:NUM_GOLDEN], golden, strict=True)),
            mlflow_run_id=run_id,
        )
        copy = partial(shutil.copytree, models, dirs_exist_ok=True)
        return ModelBundle.write(folder, manifest, copy), served


def assess(
    config: TrainConfig,
    splits: Splits,
    served: NDArray[np.float64],
    fp32: NDArray[np.float64],
    prompt_tokens: Sequence[int],
) -> dict[str, Any]:
    """Return figures on the test split, by the scores of the served model and of FP32."""
    lengths = observed(splits.test)
    fitting = splits.train, config.data.repeats, splits.test
    ridge = tfidf_ridge(*fitting)
    metrics: dict[str, Any] = {
        "tau_b": tau_b(served, lengths),
        "tau_b_ci": tau_b_ci(served, lengths),
        "tau_b_fp32": tau_b(fp32, lengths),
        "tau_b_tfidf_ridge": tau_b(ridge, lengths),
        "tau_b_prompt_tokens": tau_b(prompt_tokens, lengths),
        "int8_tau_b_drop": tau_b(fp32, lengths) - tau_b(served, lengths),
        # Between the two sets of scores: unlike the drop, free of the noise in the lengths.
        "int8_order_tau_b": tau_b(fp32, served),
    }
    groups = list(splits.test["group"])
    if len(set(groups)) > 1:
        metrics["tau_b_within_groups"] = grouped_tau_b(served, lengths, groups)
        by_group = group_means(*fitting)
        metrics["tau_b_group_means"] = tau_b(by_group, lengths, ties_by_chance=True)
        metrics["tau_b_tfidf_ridge_within_groups"] = grouped_tau_b(ridge, lengths, groups)
    samples = lengths_of(splits.test)
    if all(len(lengths) > 1 for lengths in samples):
        means = targets(splits.test, "geometric_mean")
        metrics["tau_b_geometric_mean"] = tau_b(served, means)
        metrics |= {"ceiling": ceiling(samples), "second_answer": ceiling(samples, most=1)}
    return finite_or_null(metrics)


def _calibration(scorer: OnnxScorer, items: Dataset, tokenizer: Tokenizer) -> dict[str, Any]:
    if len(items) < MIN_ROWS:
        logger.warning("no calibration: fewer than %d prompts were kept for it", MIN_ROWS)
        return {}
    scores = onnx_scores(scorer, tokenize(tokenizer, texts(items)).ids)
    # Only the sample that tests compare with: others may be of another temperature and spread,
    # which cost up to 3 points of coverage.
    return {items[0]["model"] or "default": calibrate(scores, observed(items))}


def write_test_prompts(path: Path, labelled: LabelledSplits) -> None:
    """Write the held-out prompts, with a column of observed lengths per label; 0 is no length."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    test, heads = labelled.splits.test, labelled.heads
    parts = (labelled, *(heads if not labelled.config.data.head_per_dataset else ()))
    lengths_NK = np.nan_to_num(side_by_side(test, [p.splits.test for p in parts])).astype(int)
    columns: dict[str, Any] = {"prompt": texts(test)}
    columns |= {part.config.data.label: lengths_NK[:, n] for n, part in enumerate(parts)}
    columns["model"] = list(test["model"])
    if any(groups := list(test["group"])):
        columns["group"] = groups
    pq.write_table(pa.table(columns), path)


def log_results(
    tracker: Tracker,
    bundle: ModelBundle,
    trained: Trained,
    report: Path,
    splits: Splits,
    scores: NDArray[np.float64],
) -> None:
    """Log bundle, checkpoint, report, table of test prompts and metrics.

    Names of a further label begin with the label.
    """
    metrics, is_first = bundle.manifest.metrics, bundle.path.name == BUNDLE
    prefix = "" if is_first else f"{bundle.path.name.removeprefix(f'{BUNDLE}-')}/"
    if is_first:
        tracker.set_tags(tags_of(bundle.manifest))
        tracker.describe(summary_of(bundle, splits))
    tracker.log_folder(bundle.path, bundle.path.name)
    examples = splits.test["prompt"][:2]
    tracker.log_model_files(bundle.path.name, examples)
    with tempfile.TemporaryDirectory() as work:
        save_scorer(Path(work), trained.scorer, trained.tokenizer)
        tracker.log_folder(Path(work), f"{prefix}{CHECKPOINT}")
        tracker.log_model_files(f"{prefix}{CHECKPOINT}", examples, CHECKPOINT_MODEL)
    table = evaluation_table(texts(splits.test), observed(splits.test), scores)
    tracker.log_table(f"{prefix}{EVALUATION}", table)
    low, high = metrics["tau_b_ci"]
    numbers = {"tau_b_low": low, "tau_b_high": high, **metrics}
    numbers |= {f"coverage_{q}": share for q, share in metrics.get("coverage", {}).items()}
    tracker.log_metrics({prefix + name: value for name, value in numbers.items()})
    tracker.log_file(report)


def summary_of(bundle: ModelBundle, splits: Splits) -> str:
    """Return the figures of a bundle in a sentence."""
    figures = figures_of(bundle.manifest)
    return (
        f"tau_b {show_tau_b(figures)} on {len(splits.test)} test prompts of {figures['dataset']}, "
        f"by {bundle.manifest.label}, after {len(splits.train)} training prompts"
    )
