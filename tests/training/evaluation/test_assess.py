"""Test figures: of the model that will be served, beside FP32 and the baselines."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from scoring_service.agreement import tau_b
from scoring_service.bundle import FP32, INT8, ModelBundle
from training.config import TrainConfig
from training.data.labels import LabelledPrompt, observed
from training.data.splits import Splits
from training.evaluation.assess import assess
from training.export.onnx_models import Parity

WORDS = ("yes", "no", "short", "poem", "long", "essay")


def items(count: int, seed: int, samples: int, groups: int) -> list[LabelledPrompt]:
    rng = np.random.default_rng(seed)
    drawn = []
    for number in range(count):
        words = rng.integers(len(WORDS), size=3)
        lengths = np.exp(words.mean() + rng.normal(0, 0.4, samples)) * 20 + 1
        drawn.append(
            LabelledPrompt(
                prompt=" ".join([*(WORDS[n] for n in words), str(number)]),
                model="m",
                lengths=tuple(int(length) for length in lengths),
                group=f"g{number % groups}",
            )
        )
    return drawn


@pytest.fixture
def figures_of(tiny_bundle: ModelBundle, tmp_path: Path) -> Any:
    def run(*, int8: bool = False, samples: int = 1, groups: int = 1) -> tuple[Any, Any, Any]:
        tokenizer = Tokenizer.from_file(str(tiny_bundle.tokenizer_path))
        tokenizer.enable_truncation(tiny_bundle.manifest.max_prompt_tokens)
        trained: Any = SimpleNamespace(
            tokenizer=tokenizer, num_encoded=7, train_cpu_s=1.23456, padding_fraction=0.1
        )
        for name in (FP32, *((INT8,) if int8 else ())):
            shutil.copy(tiny_bundle.model_path("fp32"), tmp_path / name)
        splits = Splits(
            train=items(90, 0, samples, groups), val=[], test=items(60, 1, samples, groups)
        )
        parity = Parity(max_abs_diff=1e-6, tau_b=1.0)
        metrics, scores = assess(TrainConfig(), splits, trained, tmp_path, parity)
        return metrics, scores, splits.test

    return run


def test_the_scores_are_those_of_the_served_model_and_give_tau_b(figures_of: Any) -> None:
    metrics, scores, test = figures_of()
    assert metrics["tau_b"] == metrics["tau_b_fp32"] == tau_b(scores, observed(test))
    assert metrics["tau_b_ci"][0] < metrics["tau_b"] < metrics["tau_b_ci"][1]
    assert (metrics["has_int8"], metrics["int8_tau_b_drop"]) == (False, 0.0)
    assert (metrics["encoder_passes"], metrics["train_cpu_s"]) == (7, 1.235)
    assert metrics["tau_b_tfidf_ridge"] > 0.2
    assert not {"ceiling", "tau_b_within_groups"} & set(metrics)
    assert figures_of(int8=True)[0]["has_int8"] is True


def test_groups_and_repeated_samples_add_their_figures(figures_of: Any) -> None:
    metrics, scores, test = figures_of(samples=2, groups=3)
    assert {"tau_b_within_groups", "tau_b_group_means"} < set(metrics)
    second = [item.lengths[1] for item in test]
    assert metrics["ceiling"] == tau_b(second, observed(test))
    means = [item.target("geometric_mean") for item in test]
    assert metrics["tau_b_geometric_mean"] == tau_b(scores, means)
