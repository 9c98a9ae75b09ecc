"""Callbacks: a line of progress, and an interrupt that waits for a due validation."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training.ranker.callbacks import ResumableInterrupt, StepProgress


class Trainer(SimpleNamespace):
    """Notes the checkpoints that were asked for."""

    def save_checkpoint(self, path: Path) -> None:
        self.saved = [*getattr(self, "saved", []), path]


@pytest.fixture
def module() -> Any:
    calls: list[int] = []
    return SimpleNamespace(
        calls=calls, on_train_batch_end=lambda outputs, batch, number: calls.append(number)
    )


def test_an_interrupt_saves_after_the_step_and_stops(tmp_path: Path, module: Any) -> None:
    callback, trainer = ResumableInterrupt(tmp_path / "last.ckpt"), Trainer(val_check_batch=4)
    before = signal.getsignal(signal.SIGINT)
    callback.on_fit_start(trainer, module)
    callback.on_train_batch_end(trainer, module, None, None, 0)  # Nothing was asked for yet.
    signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before  # A second one stops at once.
    with pytest.raises(KeyboardInterrupt):
        callback.on_train_batch_end(trainer, module, None, None, 1)
    assert (trainer.saved, module.calls) == ([tmp_path / "last.ckpt"], [1])
    callback.on_fit_end(trainer, module)
    assert signal.getsignal(signal.SIGINT) == before


def test_an_interrupt_waits_for_a_validation_that_is_due(tmp_path: Path, module: Any) -> None:
    callback, trainer = ResumableInterrupt(tmp_path / "last.ckpt"), Trainer(val_check_batch=4)
    callback.on_validation_end(trainer, module)
    callback.on_fit_start(trainer, module)
    signal.raise_signal(signal.SIGINT)
    callback.on_train_batch_end(trainer, module, None, None, 3)
    assert not hasattr(trainer, "saved")
    with pytest.raises(KeyboardInterrupt):
        callback.on_validation_end(trainer, module)
    assert trainer.saved == [tmp_path / "last.ckpt"]


def test_the_line_of_progress_counts_only_the_steps_of_this_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([100.0, 100.0, 110.0, 120.0])
    monkeypatch.setattr("training.ranker.callbacks.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress, trainer = StepProgress(), SimpleNamespace(global_step=10)
    module = SimpleNamespace(total_steps=16, history=[])
    progress.on_train_start(trainer, module)  # type: ignore[arg-type]
    trainer.global_step = 12  # Two steps in ten seconds, four are left.
    progress.on_train_batch_end(trainer, module, None, None, 0)  # type: ignore[arg-type]
    assert capsys.readouterr().err == "\rstep 12/16  20 s left "
    trainer.global_step, module.history = 16, [{"val/tau_b": 0.5}]
    progress.on_train_batch_end(trainer, module, None, None, 0)  # type: ignore[arg-type]
    assert capsys.readouterr().err == "\rstep 16/16  val tau_b 0.500  0 s left \n"


def test_without_a_terminal_every_tenth_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [0.0]
    monkeypatch.setattr("training.ranker.callbacks.time.monotonic", lambda: now_s[0])
    caplog.set_level("INFO")
    progress, trainer = StepProgress(), SimpleNamespace(global_step=0, is_global_zero=True)
    module = SimpleNamespace(total_steps=2400, history=[{"val/tau_b": 0.5}])
    progress.on_train_start(trainer, module)  # type: ignore[arg-type]
    for trainer.global_step in range(1, 2401):
        now_s[0] = float(trainer.global_step)
        progress.on_train_batch_end(trainer, module, None, None, 0)  # type: ignore[arg-type]
    assert len(caplog.messages) == 10
    assert caplog.messages[0] == "10% after 240 s  step 240/2400  val tau_b 0.500  2160 s left "
