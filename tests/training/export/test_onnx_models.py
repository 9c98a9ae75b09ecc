"""An export of a model that changed is refused, INT8 is gated; kinds: `test_encoder`."""

from functools import partial

import numpy as np
import pytest
import torch

from lengthwise.bundle import FP32, INT8
from lengthwise.errors import BundleError
from tests.training.drawn import generate
from training.export import onnx_models
from training.export.onnx_models import measure_parity, write_models
from training.ranker.data_module import tokenize
from training.ranker.encoder import build_scorer, in_buckets

pytestmark = pytest.mark.slow

PROMPTS = [record.prompt for record in generate(60, seed=3)[0]]


def test_int8_is_gated_and_a_model_that_changed_is_refused(tiny_bert, tmp_path, monkeypatch):
    scorer, tokenizer = build_scorer(str(tiny_bert), "mean", seed=0, max_prompt_tokens=32)
    ids = tokenize(tokenizer, PROMPTS).ids
    lengths = np.argsort(np.argsort(in_buckets(scorer.eval(), ids))) + 1.0
    write = partial(write_models, scorer, tmp_path, sample_ids=ids, val_ids=ids)
    found = write(val_lengths=lengths, max_tau_b_drop=1.0)
    assert (tmp_path / INT8).is_file()
    assert (drop := found["int8_val_tau_b_drop"]) > 0  # FP32 ranks them perfectly.
    monkeypatch.setattr(onnx_models, "export_fp32", lambda *_: None)  # It is there.
    assert write(val_lengths=lengths, max_tau_b_drop=drop / 2) == pytest.approx(found)
    assert sorted(path.name for path in tmp_path.iterdir()) == [FP32]
    with torch.no_grad():
        scorer.head.bias += 0.1
    with pytest.raises(BundleError, match=r"differs by 0\.1 from the trained one"):
        measure_parity(scorer, tmp_path / FP32, ids)
