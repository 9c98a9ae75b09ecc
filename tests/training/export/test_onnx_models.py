"""The exported model ranks as the trained one does, or is not exported."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from lengthwise.bundle import FP32, INT8
from lengthwise.errors import BundleError
from training.data.synthetic import generate
from training.export.onnx_models import export_fp32, measure_parity, write_models
from training.ranker.data_module import tokenize
from training.ranker.encoder import PromptScorer, build_scorer, in_buckets

pytestmark = pytest.mark.slow

RECORDS, _ = generate(60, seed=3)
PROMPTS = [record.prompt for record in RECORDS]
LENGTHS = np.array([float(record.output_tokens) for record in RECORDS])


@pytest.fixture(scope="module")
def scorer(tiny_bert: Path) -> PromptScorer:
    scorer, _ = build_scorer(str(tiny_bert), "mean", seed=0, max_prompt_tokens=32)
    return scorer.eval()


@pytest.fixture(scope="module")
def ids(tiny_bert: Path) -> list[list[int]]:
    _, tokenizer = build_scorer(str(tiny_bert), "mean", seed=0, max_prompt_tokens=32)
    return tokenize(tokenizer, PROMPTS).ids


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler", "last"])
def test_every_pooling_survives_the_export(
    tiny_bert: Path, tmp_path: Path, ids: list[list[int]], pooling: str
) -> None:
    scorer, _ = build_scorer(str(tiny_bert), pooling, seed=0, max_prompt_tokens=32)  # type: ignore[arg-type]
    export_fp32(scorer.eval(), tmp_path / FP32)
    parity = measure_parity(scorer, tmp_path / FP32, ids)
    assert parity["onnx_max_abs_diff"] < 1e-5
    assert parity["onnx_order_tau_b"] == pytest.approx(1.0)


def test_a_model_that_changed_after_its_export_is_refused(
    scorer: PromptScorer, tmp_path: Path, ids: list[list[int]]
) -> None:
    export_fp32(scorer, tmp_path / FP32)
    with torch.no_grad():
        scorer.head.bias += 0.1
    with pytest.raises(BundleError, match=r"differs by 0\.1 from the trained one"):
        measure_parity(scorer, tmp_path / FP32, ids)


def test_int8_is_left_out_where_it_loses_more_than_the_gate(
    scorer: PromptScorer, tmp_path: Path, ids: list[list[int]]
) -> None:
    lengths = np.argsort(np.argsort(in_buckets(scorer, ids))) + 1.0  # FP32 ranks them perfectly.
    write = partial(write_models, scorer, tmp_path, sample_ids=ids, val_ids=ids)
    drop = write(val_lengths=lengths, max_tau_b_drop=1.0)["int8_val_tau_b_drop"]
    assert (tmp_path / INT8).is_file()
    assert drop > 0
    again = write(val_lengths=lengths, max_tau_b_drop=drop / 2)
    assert again["int8_val_tau_b_drop"] == pytest.approx(drop)
    assert sorted(path.name for path in tmp_path.iterdir()) == [FP32]
