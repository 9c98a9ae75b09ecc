"""Lightning's Trainer of a run, from its settings in plain values, and our callbacks."""

import logging
import os
import signal
import time
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import FrameType
from typing import Any, Final

import lightning as L
import torch
from jsonargparse import ArgumentParser
from lightning.pytorch.callbacks import (
    Checkpoint,
    EMAWeightAveraging,
    LearningRateMonitor,
    ModelCheckpoint,
)
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lengthwise.errors import ConfigError, raised_as
from lengthwise.progress import Progress
from training.config import TrainConfig

LAST: Final = "last.ckpt"
BEST: Final = "best.ckpt"
logger = logging.getLogger(__name__)


def add_trainer(parser: ArgumentParser) -> None:
    """Add the settings of Lightning's Trainer to a parser, under `trainer`."""
    LightningArgumentParser.add_lightning_class_args(parser, L.Trainer, "trainer")


def trainer_arguments(config: TrainConfig) -> dict[str, Any]:
    """Return the arguments of the Trainer: callbacks and the like are made from their settings."""
    parser = ArgumentParser(exit_on_error=False)
    add_trainer(parser)
    with raised_as(ConfigError, "--trainer: {}", ArgumentError, TypeError, ValueError):
        # A copy: the parser puts its own types into what it is given.
        parsed = parser.parse_object({"trainer": deepcopy(dict(config.trainer))})
        arguments: dict[str, Any] = parser.instantiate(parsed)["trainer"].as_dict()
    # As torchrun sets them.
    num_processes = int(os.environ.get("WORLD_SIZE", "1"))
    num_devices = int(os.environ.get("LOCAL_WORLD_SIZE", num_processes))
    if "devices" not in config.trainer:
        arguments |= {"devices": num_devices, "num_nodes": num_processes // num_devices}
    if "strategy" not in config.trainer and (num_processes > 1 or str(arguments["devices"]) != "1"):
        # A backbone's pooler goes unused unless it is what pools.
        arguments["strategy"] = "ddp_find_unused_parameters_true"
    if arguments["precision"] is None:
        arguments["precision"] = "bf16-mixed" if _has_fast_bf16() else "32-true"
    return arguments


def make_trainer(
    arguments: Mapping[str, Any], callbacks: Sequence[L.Callback], lightning_logger: Any
) -> L.Trainer:
    """Return a Trainer with our callbacks and logger beside those of the settings."""
    theirs, loggers = arguments["callbacks"] or [], arguments["logger"] or []
    theirs = theirs if isinstance(theirs, list) else [theirs]
    loggers = [] if loggers is True else loggers if isinstance(loggers, list) else [loggers]
    if lightning_logger and arguments["logger"] is not False:
        loggers = [lightning_logger, *loggers]
    defaults = {
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    defaults = {name: value for name, value in defaults.items() if arguments[name] is None}
    ours = {"callbacks": [*callbacks, *theirs], "logger": loggers or False}
    kinds = MisconfigurationException, TypeError, ValueError, RuntimeError
    with raised_as(ConfigError, "--trainer: {}", *kinds):
        return L.Trainer(**{**arguments, **defaults, **ours, "use_distributed_sampler": False})


def count_steps(arguments: dict[str, Any], num_batches: int) -> tuple[int, int]:
    """Return the optimiser steps of an epoch, and those of the run, which the rate follows.

    A run of fewer steps than its validations are apart is validated at its end.
    """
    limit, accumulated = arguments["limit_train_batches"], arguments["accumulate_grad_batches"]
    if limit is not None:
        is_count = isinstance(limit, int) or limit > 1
        num_batches = min(num_batches, int(limit)) if is_count else int(num_batches * limit)
    per_epoch = -(-num_batches // accumulated)
    epochs, most = arguments["max_epochs"], arguments["max_steps"]
    counts = [] if epochs in (None, -1) else [per_epoch * epochs]
    counts += [most] if most > 0 else []
    if not counts or min(counts) < 1:
        raise ConfigError(
            "--trainer: the learning rate follows a known number of steps; give a "
            "--trainer.max_epochs, or --trainer.max_steps, of 1 or more"
        )
    interval = arguments["val_check_interval"]
    if most > 0 and isinstance(interval, float) and interval <= 1:
        every = max(1, int(num_batches * interval))
        arguments["val_check_interval"] = min(every, most * accumulated)
    return per_epoch, min(counts)


def callbacks_of(config: TrainConfig, folder: Path, lightning_logger: Any) -> list[L.Callback]:
    """Return the callbacks of a run: checkpoints, progress, learning rates, averages."""
    # A checkpoint of weights only would not hold Lightning's averaged weights.
    best = {"monitor": "val/tau_b", "mode": "max", "save_weights_only": not config.optim.ema_decay}
    kept: dict[str, dict[str, Any]] = {BEST: best, LAST: {"save_on_train_epoch_end": False}}
    made = [
        ModelCheckpoint(folder, Path(name).stem, enable_version_counter=False, **settings)
        for name, settings in kept.items()
    ]
    made += [ResumableInterrupt(folder / LAST), StepProgress()]
    if config.optim.ema_decay is not None:
        made.append(EMAWeightAveraging(decay=config.optim.ema_decay))
    if lightning_logger and config.trainer.get("logger") is not False:
        made.append(LearningRateMonitor("step"))
    return made


def _has_fast_bf16() -> bool:
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    cpu = torch.cpu.get_capabilities()
    # Without AMX, Intel's cores take 1.9 times as long for a product in bf16 as for one in fp32.
    is_faster = cpu.get("avx512_bf16") and "Intel" not in str(cpu.get("cpu_name"))
    return bool(cpu.get("amx_bf16") or is_faster)


class StepProgress(L.Callback):  # type: ignore[misc]
    """One line on stderr that rewrites itself on a terminal; else a log line every tenth."""

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        self._start_s = time.monotonic()
        self._first_step = trainer.global_step
        self._progress = Progress(log=logger.info)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Rewrite the line, or log one."""
        step, total = trainer.global_step, module.total_steps
        elapsed_s = time.monotonic() - self._start_s
        left_s = elapsed_s / max(1, step - self._first_step) * (total - step)
        tau = f"  val tau_b {module.history[-1]['val/tau_b']:.3f}" if module.history else ""
        line = f"step {step}/{total}{tau}  {left_s:.0f} s left"
        if trainer.is_global_zero:
            self._progress.reach(step / total, line)
            if step == total:
                self._progress.close()


class ResumableInterrupt(Checkpoint):  # type: ignore[misc]
    """On Ctrl-C: finish the step, save the whole state, stop. A second Ctrl-C stops at once.

    A `Checkpoint`, because Lightning runs those last: the best checkpoint must have been noted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._requested = False
        self._previous: Any = None

    def on_fit_start(self, trainer: L.Trainer, module: Any) -> None:
        self._previous = signal.signal(signal.SIGINT, self._request)

    def on_fit_end(self, trainer: L.Trainer, module: Any) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop, unless a validation is due: a checkpoint before it would skip it."""
        if self._requested and (batch_idx + 1) % trainer.val_check_batch:
            # The module's own end-of-step hook comes after this one.
            module.on_train_batch_end(outputs, batch, batch_idx)
            self._stop(trainer)

    def on_validation_end(self, trainer: L.Trainer, module: Any) -> None:
        if self._requested:
            self._stop(trainer)

    def _stop(self, trainer: L.Trainer) -> None:
        trainer.save_checkpoint(self.path)
        raise KeyboardInterrupt

    def _request(self, number: int, frame: FrameType | None) -> None:
        self._requested = True
        signal.signal(signal.SIGINT, self._previous)
