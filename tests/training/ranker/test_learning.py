"""The training loop: precision as asked or as the hardware has it, and settings checked first."""

from __future__ import annotations

from pathlib import Path

import pytest

from scoring_service.errors import ConfigError
from training.config import EncoderConfig, LossConfig, TrainConfig
from training.ranker import learning
from training.ranker.learning import load_encoder


def test_an_unknown_objective_is_refused_before_anything_is_loaded() -> None:
    config = TrainConfig(
        loss=LossConfig(objective="pairz"), encoder=EncoderConfig(backbone="/no/such/model")
    )
    with pytest.raises(ConfigError, match=r"loss\.objective is 'pairz'; use one of pairs, all-p"):
        load_encoder(config, 1)


def test_an_encoder_has_a_head_per_length_and_the_tokenizers_limit(tiny_bert: Path) -> None:
    config = TrainConfig(encoder=EncoderConfig(backbone=str(tiny_bert)))
    scorer, tokenizer = load_encoder(config, 2)
    assert scorer.head.out_features == scorer.length_head.out_features == 2
    assert (tokenizer.truncation or {})["max_length"] == 128


@pytest.mark.parametrize(
    ("precision", "capabilities", "expected"),
    [
        ("fp32", {"avx512_bf16": True}, False),
        ("bf16", {}, True),
        ("auto", {}, False),
        ("auto", {"avx512_bf16": True}, True),
        ("auto", {"amx_bf16": True}, True),
    ],
)
def test_bf16_is_used_where_asked_for_or_native(
    precision: str,
    capabilities: dict[str, bool],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: capabilities)
    assert learning._use_bf16(TrainConfig(precision=precision)) is expected  # type: ignore[arg-type]
