"""The training loop: precision as asked or as the hardware has it, and settings checked first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import lightning as L
import pytest
import torch

from scoring_service.errors import ConfigError, DataError
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


class Malicious:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


class Tiny(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.layer(batch[0]).sum()

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(2, 1)))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def tiny_trainer() -> L.Trainer:
    return L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def test_a_checkpoint_with_code_in_it_is_refused_and_runs_none(tmp_path: Path) -> None:
    trainer, module = tiny_trainer(), Tiny()
    module_for_run = cast(Any, module)
    learning._run(trainer, module_for_run, cast(Any, None), None)
    whole, tampered = tmp_path / "whole.ckpt", tmp_path / "tampered.ckpt"
    trainer.save_checkpoint(whole)
    content = torch.load(whole, weights_only=True)
    torch.save({**content, "progress": Malicious(tmp_path / "made")}, tampered)
    learning._run(tiny_trainer(), module_for_run, cast(Any, None), whole)
    with pytest.raises(DataError, match=r"tampered\.ckpt: .*train anew"):
        learning._run(tiny_trainer(), module_for_run, cast(Any, None), tampered)
    assert not (tmp_path / "made").exists()
