"""Test figures of a trained ranker: tau_b of every precision and baseline, pair accuracy, cost."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoring_service.agreement import tau_b
from scoring_service.bundle import FP32, INT8
from scoring_service.ranker.scorer import OnnxScorer
from scoring_service.strict_json import finite_or_null
from training.config import TrainConfig
from training.data.labels import observed, texts
from training.data.splits import Splits
from training.evaluation.baselines import group_means, tfidf_ridge
from training.evaluation.metrics import grouped_tau_b, pair_accuracy, tau_b_ci
from training.export.onnx_models import Parity
from training.export.scores import onnx_scores
from training.ranker.data_module import tokenize
from training.ranker.learning import Trained


def assess(
    config: TrainConfig, splits: Splits, trained: Trained, models: Path, parity: Parity
) -> tuple[dict[str, Any], NDArray[np.float64]]:
    """Return figures on the test split by the exported models, and the scores behind them.

    `tau_b` is that of the model the service will run: INT8 if the bundle holds it.
    """
    lengths = observed(splits.test)
    ids = tokenize(trained.tokenizer, texts(splits.test)).ids
    scores = {
        name: onnx_scores(OnnxScorer(models / name), ids)
        for name in (FP32, INT8)
        if (models / name).is_file()
    }
    served = scores.get(INT8, scores[FP32])
    low, high = tau_b_ci(served, lengths)
    fitting = splits.train, config.data.repeats, splits.test
    ridge = tfidf_ridge(*fitting)
    metrics: dict[str, Any] = {
        "tau_b": tau_b(served, lengths),
        "tau_b_ci": [low, high],
        "tau_b_fp32": tau_b(scores[FP32], lengths),
        "tau_b_tfidf_ridge": tau_b(ridge, lengths),
        "tau_b_prompt_tokens": tau_b([len(row) for row in ids], lengths),
        "pair_accuracy": pair_accuracy(served, lengths),
        "pair_accuracy_delta": pair_accuracy(served, lengths, delta=config.loss.delta),
        "onnx_max_abs_diff": parity.max_abs_diff,
        "onnx_order_tau_b": parity.tau_b,
        "int8_tau_b_drop": tau_b(scores[FP32], lengths) - tau_b(served, lengths),
        # Between the two sets of scores: unlike the drop, free of the noise in the lengths.
        "int8_order_tau_b": tau_b(scores[FP32], served),
        "has_int8": INT8 in scores,
        "encoder_passes": trained.num_encoded,
        "train_cpu_s": round(trained.train_cpu_s, 3),
        "padding_fraction": trained.padding_fraction,
    }
    groups = [item.group for item in splits.test]
    if len(set(groups)) > 1:
        metrics["tau_b_within_groups"] = grouped_tau_b(served, lengths, groups)
        metrics["tau_b_group_means"] = tau_b(group_means(*fitting), lengths)
        metrics["tau_b_tfidf_ridge_within_groups"] = grouped_tau_b(ridge, lengths, groups)
    if all(len(item.lengths) > 1 for item in splits.test):
        means = [item.target("geometric_mean") for item in splits.test]
        metrics["tau_b_geometric_mean"] = tau_b(served, means)
        metrics["ceiling"] = tau_b([item.lengths[1] for item in splits.test], lengths)
    return finite_or_null(metrics), served
