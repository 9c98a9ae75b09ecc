"""Publishing: test figures, the table of held-out prompts, the prompts of the length curves."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from tokenizers import Tokenizer

from lengthwise.agreement import tau_b
from lengthwise.bundle import DIRECTION, FP32, INT8, ModelBundle
from lengthwise.tables.reading import read_table
from scoring_service.ranker.scorer import OnnxScorer
from tests.training.drawn import generate
from tests.training.prompts import labels, splits_of
from training.config import DataConfig, TrainConfig
from training.data.labelled_splits import LabelledSplits, load_splits
from training.data.labels import lengths_of, observed, targets, texts
from training.evaluation.calibration import MIN_ROWS, calibrate
from training.export.bundle_scores import score_prompts
from training.ranker.training_loop import Trained
from training.release import publish


@pytest.fixture
def labelled(tmp_path: Path) -> LabelledSplits:
    """Two labels, of which every fifth prompt has one only."""
    rows = [
        {"prompt": r.prompt, "output_tokens": r.output_tokens + 5, "reasoning_tokens": n % 5}
        for n, r in enumerate(generate(500, seed=1)[0])
    ]
    path = tmp_path / "logs.parquet"
    pd.DataFrame(rows).to_parquet(path)
    data = DataConfig(dataset=str(path), heads=("reasoning_tokens",))
    return load_splits(TrainConfig(data=data), None)


def test_held_out_prompts_have_a_column_per_label_and_0_for_none(labelled, tmp_path):
    publish.write_test_prompts(tmp_path / "test.parquet", labelled)
    table = read_table(tmp_path / "test.parquet")
    assert list(table.columns) == ["prompt", "output_tokens", "reasoning_tokens", "model"]
    assert table["prompt"].tolist() == texts(labelled.splits.test)
    assert table["output_tokens"].tolist() == observed(labelled.splits.test).tolist()
    (head,) = labelled.heads
    known = table[table["reasoning_tokens"] > 0]
    assert known["reasoning_tokens"].tolist() == observed(head.splits.test).tolist()
    assert 0 < len(known) < len(table)
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_curves_are_of_the_served_model_on_calibration_prompts(labelled, tiny_bundle, caplog):
    tokenizer = Tokenizer.from_file(str(tiny_bundle.tokenizer_path))
    tokenizer.enable_truncation(tiny_bundle.manifest.max_prompt_tokens)
    part = labelled.splits.train.take(80)
    items = part.remove_columns("model").add_column("model", ["llama"] * 80)
    scorer = OnnxScorer(tiny_bundle.model_path("auto"))
    found = publish._calibration(scorer, items, tokenizer)
    scores = score_prompts(tiny_bundle, texts(items))
    assert found == {"llama": calibrate(scores, observed(items))}
    assert publish._calibration(scorer, items.take(MIN_ROWS - 1), tokenizer) == {}
    assert "no calibration: fewer than 50 prompts" in caplog.text


@pytest.mark.parametrize("has_int8", [True, False])
def test_a_bundle_states_its_precisions_and_the_training_cost(
    has_int8: bool,
    labelled: LabelledSplits,
    tiny_bundle: ModelBundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parity = {"onnx_max_abs_diff": 1e-6, "onnx_order_tau_b": 1.0, "int8_val_tau_b_drop": 0.01}

    def write_models(scorer: Any, folder: Path, **_: Any) -> dict[str, float]:
        for name in (FP32, INT8)[: 1 + has_int8]:
            shutil.copy(tiny_bundle.model_path("fp32"), folder / name)
        return parity

    monkeypatch.setattr(publish, "write_models", write_models)
    tokenizer = Tokenizer.from_file(str(tiny_bundle.tokenizer_path))
    tokenizer.enable_truncation(tiny_bundle.manifest.max_prompt_tokens)
    trained = Trained(
        scorer=lambda ids, mask: mask.sum(1).float(),  # type: ignore[arg-type]
        tokenizer=tokenizer,
        num_truncated=0,
        history=(),
        num_encoded=700,
        train_cpu_s=1.23456,
    )
    bundle, scores = publish.write_bundle(labelled, trained, tmp_path / "bundle", "run", "m")
    facts = onnxruntime.InferenceSession(bundle.model_path()).get_modelmeta().custom_metadata_map
    expected = {"name": "m", "score_direction": DIRECTION, "label": bundle.manifest.label}
    assert facts == expected | {"max_prompt_tokens": "32"}
    expected = {"has_int8": has_int8, "encoder_passes": 700, "train_cpu_s": 1.235}
    expected |= parity
    assert expected.items() <= bundle.manifest.metrics.items()
    assert (INT8 in bundle.manifest.files) == has_int8
    assert len(scores) == len(labelled.splits.test)


@pytest.fixture
def figures_of(tiny_bundle: ModelBundle) -> Any:
    def run(*, samples: int = 1, groups: int = 1) -> tuple[Any, Any, Any]:
        drawn = generate(360, seed=2, samples=samples)[0]
        items = labels(replace(r, group=f"g{n % groups}") for n, r in enumerate(drawn))
        train, test = items.take(300), items.skip(300)
        scores = score_prompts(tiny_bundle, texts(test))
        splits = splits_of(train, train, test)
        tokens = [len(prompt.split()) for prompt in texts(test)]
        return publish.assess(TrainConfig(), splits, scores, -scores, tokens), scores, test

    return run


def test_the_scores_are_those_of_the_served_model_and_give_tau_b(figures_of: Any) -> None:
    metrics, scores, test = figures_of()
    assert metrics["tau_b"] == -metrics["tau_b_fp32"] == tau_b(scores, observed(test))
    assert metrics["tau_b_ci"][0] < metrics["tau_b"] < metrics["tau_b_ci"][1]
    assert metrics["int8_tau_b_drop"] == -2 * metrics["tau_b"]
    assert metrics["int8_order_tau_b"] == pytest.approx(-1)
    assert metrics["tau_b_tfidf_ridge"] > 0.2
    assert not {"ceiling", "tau_b_within_groups"} & set(metrics)


def test_groups_and_repeated_samples_add_their_figures(figures_of: Any) -> None:
    metrics, scores, test = figures_of(samples=3, groups=3)
    assert {"tau_b_within_groups", "tau_b_group_means"} < set(metrics)
    assert metrics["second_answer"] == tau_b([row[1] for row in lengths_of(test)], observed(test))
    further = np.prod([row[1:] for row in lengths_of(test)], axis=1)
    assert metrics["ceiling"] == pytest.approx(tau_b(further, observed(test)), abs=1e-3)
    means = targets(test, "geometric_mean")
    assert metrics["tau_b_geometric_mean"] == tau_b(scores, means)
