"""The training loop: splits and settings -> a trained scorer and its history."""

from __future__ import annotations

import logging
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from tokenizers import Tokenizer

from lengthwise.errors import ConfigError, DataError, raised_as, require
from training.config import TrainConfig
from training.data.labels import texts
from training.data.splits import Splits
from training.ranker.convolution import CONVOLUTION, build_convolution
from training.ranker.data_module import LengthData, Teacher
from training.ranker.encoder import PromptScorer, build_scorer, find_backbone
from training.ranker.losses import LOSSES
from training.ranker.module import LengthRanker, length_scale, start_heads
from training.ranker.trainer import (
    BEST,
    LAST,
    callbacks_of,
    count_steps,
    make_trainer,
    trainer_arguments,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The best checkpoint of a run, by validation tau_b."""

    scorer: PromptScorer
    tokenizer: Tokenizer
    num_truncated: int
    """Training and validation prompts beyond the encoder's limit."""
    history: tuple[Mapping[str, float], ...]
    num_encoded: int
    """Prompts encoded in training."""
    train_cpu_s: float
    teacher: Mapping[str, Any] = field(default_factory=dict)
    """Of a student: its teacher's revision, and the number of prompts without lengths."""

    def only(self, label: int) -> Trained:
        """Return the result with the scorer of one label only, by its position."""
        return replace(self, scorer=self.scorer.only(label))


def load_encoder(
    config: TrainConfig, num_labels: int, teacher: Teacher | None = None
) -> tuple[PromptScorer, Tokenizer]:
    """Load the pretrained backbone, with untrained heads per length, and its tokenizer.

    A convolution has the embeddings and the tokenizer of its teacher.
    """
    objective, known = config.loss.objective, ("pairs", *LOSSES)
    require("loss.objective", repr(objective), objective in known, f"one of {', '.join(known)}")
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    encoder, limit = config.encoder, config.data.max_prompt_tokens
    if encoder.backbone != CONVOLUTION:
        return build_scorer(
            find_backbone(encoder.backbone).source,
            encoder.pooling,
            seed=config.seed,
            max_prompt_tokens=limit,
            num_labels=num_labels,
            layers=encoder.layers,
        )
    if teacher is None:
        raise ConfigError(
            f"encoder.backbone is {CONVOLUTION}, which has the vocabulary of a teacher, but "
            "loss.teacher_weight is 0; use recipe small"
        )
    require("encoder.pooling", encoder.pooling, encoder.pooling == "mean", "mean of a convolution")
    torch.manual_seed(config.seed)
    backbone = build_convolution(teacher.embeddings_VH, width=encoder.width, layers=encoder.layers)
    teacher.tokenizer.enable_truncation(max_length=limit)
    return PromptScorer(backbone, "mean", num_labels), teacher.tokenizer


def train(
    config: TrainConfig,
    encoder: tuple[PromptScorer, Tokenizer],
    labels: Sequence[Splits],
    folder: Path,
    lightning_logger: Any,
    *,
    resume: bool = False,
    teacher: Teacher | None = None,
) -> Trained:
    """Train, or with `resume` continue from `folder/last.ckpt`; under torchrun in every process.

    Args:
        encoder: result of `load_encoder`, which fails before anything is written.
        labels: the splits by each learnt length, `config.data.label` first.

    Raises:
        KeyboardInterrupt: after Ctrl-C, with the state saved in the folder.
    """
    scorer, tokenizer = encoder
    backbone, lr = find_backbone(config.encoder.backbone)
    data = LengthData(labels, tokenizer, config, teacher)
    settings, scale = trainer_arguments(config), length_scale(data.train_lengths_NK)
    per_epoch, total = count_steps(settings, len(data.train_dataloader()))
    start_heads(scorer, config.loss.objective, scale)
    module = LengthRanker(
        config,
        encoder=encoder,
        scale=scale,
        encoder_lr=lr if config.optim.encoder_lr is None else config.optim.encoder_lr,
        total_steps=total,
        steps_per_epoch=per_epoch,
    )
    logger.info("backbone %s", backbone)
    _warn_of_equal_sequences(data, backbone)
    # torch writes zip files, whose directory comes last: one that a full disk cut off is none.
    start = folder / LAST if resume and zipfile.is_zipfile(folder / LAST) else None
    trainer = make_trainer(
        settings, callbacks_of(config, folder, lightning_logger), lightning_logger
    )
    _run(trainer, module, data, start)
    if (folder / BEST).is_file():
        module.load_state_dict(torch.load(folder / BEST, weights_only=True)["state_dict"])
    else:
        logger.warning("no validation ran, so the weights are the last, not the best")
    return Trained(
        scorer=scorer.cpu().eval(),
        tokenizer=tokenizer,
        num_truncated=data.train.num_truncated + data.val.num_truncated,
        history=tuple(module.history),
        num_encoded=module.num_encoded,
        train_cpu_s=module.train_cpu_s,
        teacher={}
        if teacher is None
        else {"revision": teacher.revision, "unlabelled_prompts": len(teacher.unlabelled)},
    )


def _warn_of_equal_sequences(data: LengthData, backbone: str) -> None:
    # Training prompts may stand in frames, whose words hide what the tokenizer lacks.
    prompts, sequences = set(texts(data.splits.val)), set(map(tuple, data.val.ids))
    if 2 * len(sequences) <= len(prompts):
        logger.warning(
            "%d different prompts become %d sequences of tokens by the tokenizer of %s (unknown "
            "characters, or a common start), and equal ones have equal scores; try another "
            "--encoder.backbone, or a larger --data.max-prompt-tokens",
            *(len(prompts), len(sequences), backbone),
        )


def _run(trainer: L.Trainer, module: LengthRanker, data: LengthData, start: Path | None) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        try:
            damaged = "the checkpoint is damaged or holds more than weights and numbers; delete it "
            with (
                raised_as(DataError, f"{damaged}and train anew", UnpicklingError, path=start),
                raised_as(ConfigError, "--trainer: {}", MisconfigurationException),
            ):
                # With other classes than those of weights a checkpoint could run code.
                trainer.fit(module, datamodule=data, ckpt_path=start, weights_only=True)
        except SystemExit as error:  # Lightning raises it on Ctrl-C.
            raise KeyboardInterrupt from error
