"""Lightning callbacks: progress, a checkpoint on Ctrl-C."""

import logging
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from lengthwise.progress import Progress

logger = logging.getLogger(__name__)


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
