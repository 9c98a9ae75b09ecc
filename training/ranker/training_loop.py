"""The training loop: splits and settings -> a trained scorer and its history."""

from __future__ import annotations

import logging
import os
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint
from tokenizers import Tokenizer

from lengthwise.errors import ConfigError, DataError, require
from training.config import TrainConfig
from training.data.labels import texts
from training.data.splits import Splits
from training.ranker.callbacks import ResumableInterrupt, StepProgress
from training.ranker.convolution import CONVOLUTION, build_convolution
from training.ranker.data_module import LengthData, Teacher
from training.ranker.encoder import PromptScorer, build_scorer, find_backbone
from training.ranker.losses import LOSSES
from training.ranker.module import LengthRanker, length_scale

LAST: Final = "last.ckpt"
BEST: Final = "best.ckpt"

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
    num_batches = len(data.train_dataloader())
    module = LengthRanker(
        config,
        encoder=encoder,
        scale=length_scale(data.train_lengths_NK),
        encoder_lr=lr if config.optim.encoder_lr is None else config.optim.encoder_lr,
        total_steps=num_batches * config.epochs,
    )
    logger.info("backbone %s", backbone)
    # Training prompts may stand in frames, whose words hide what the tokenizer lacks.
    prompts, sequences = set(texts(data.splits.val)), set(map(tuple, data.val.ids))
    if 2 * len(sequences) <= len(prompts):
        logger.warning(
            "%d different prompts become %d sequences of tokens by the tokenizer of %s (unknown "
            "characters, or a common start), and equal ones have equal scores; try another "
            "--encoder.backbone, or a larger --data.max-prompt-tokens",
            *(len(prompts), len(sequences), backbone),
        )
    # torch writes zip files, whose directory comes last: one that a full disk cut off is none.
    start = folder / LAST if resume and zipfile.is_zipfile(folder / LAST) else None
    _run(_trainer(config, num_batches, folder, lightning_logger), module, data, start)
    module.load_state_dict(torch.load(folder / BEST, weights_only=True)["state_dict"])
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


def _trainer(
    config: TrainConfig, num_batches: int, folder: Path, lightning_logger: Any
) -> L.Trainer:
    # A checkpoint of weights only would not hold Lightning's averaged weights.
    best = {"monitor": "val/tau_b", "mode": "max", "save_weights_only": not config.optim.ema_decay}
    kept: dict[str, dict[str, Any]] = {BEST: best, LAST: {"save_on_train_epoch_end": False}}
    callbacks = [
        *(
            ModelCheckpoint(folder, Path(name).stem, enable_version_counter=False, **settings)
            for name, settings in kept.items()
        ),
        ResumableInterrupt(folder / LAST),
        StepProgress(),
    ]
    if config.patience is not None:
        callbacks.append(EarlyStopping("val/tau_b", mode="max", patience=config.patience))
    if config.optim.ema_decay is not None:
        callbacks.append(EMAWeightAveraging(decay=config.optim.ema_decay))
    # As torchrun sets them.
    num_processes = int(os.environ.get("WORLD_SIZE", "1"))
    num_devices = int(os.environ.get("LOCAL_WORLD_SIZE", num_processes))
    return L.Trainer(
        devices=num_devices,
        num_nodes=num_processes // num_devices,
        # A backbone's pooler goes unused unless it is what pools.
        strategy="ddp_find_unused_parameters_true" if num_processes > 1 else "auto",
        max_epochs=config.epochs,
        precision="bf16-mixed" if _use_bf16(config) else "32-true",
        logger=lightning_logger,
        callbacks=callbacks,
        val_check_interval=num_batches // min(num_batches, config.validations_per_epoch),
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )


def _use_bf16(config: TrainConfig) -> bool:
    if config.precision != "auto":
        return config.precision == "bf16"
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    cpu = torch.cpu.get_capabilities()
    # Without AMX, Intel's cores take 1.9 times as long for a product in bf16 as for one in fp32.
    is_faster = cpu.get("avx512_bf16") and "Intel" not in str(cpu.get("cpu_name"))
    return bool(cpu.get("amx_bf16") or is_faster)


def _run(trainer: L.Trainer, module: LengthRanker, data: LengthData, start: Path | None) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        try:
            # With other classes than those of weights a checkpoint could run code when it is read.
            trainer.fit(module, datamodule=data, ckpt_path=start, weights_only=True)
        except UnpicklingError as error:
            raise DataError(
                "the checkpoint is damaged or holds more than weights and numbers; delete it and "
                "train anew",
                path=start,
            ) from error
        except SystemExit as error:  # Lightning raises it on Ctrl-C.
            raise KeyboardInterrupt from error
