"""Callbacks: a line of progress, and an interrupt that waits for a due validation."""

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


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_line_of_progress_counts_only_the_steps_of_this_run(
    is_terminal: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    caplog.set_level("INFO", "training.ranker.callbacks")
    progress, trainer = StepProgress(), SimpleNamespace(global_step=10, is_global_zero=True)
    module = SimpleNamespace(total_steps=16, history=[])
    progress.on_train_start(trainer, module)  # type: ignore[arg-type]
    now_s, trainer.global_step = 110.0, 12  # Two steps in ten seconds, four are left.
    progress.on_train_batch_end(trainer, module, None, None, 0)  # type: ignore[arg-type]
    now_s, trainer.global_step, module.history = 120.0, 16, [{"val/tau_b": 0.5}]
    progress.on_train_batch_end(trainer, module, None, None, 0)  # type: ignore[arg-type]
    first, last = "step 12/16  20 s left", "step 16/16  val tau_b 0.500  0 s left"
    if is_terminal:
        shown = capsys.readouterr().err
        assert [line.strip() for line in shown.split("\r")[1:]] == [
            f"{'#' * 15}----- 10 s  {first}",
            f"{'#' * 20} 20 s  {last}",
        ]
        assert shown.endswith("\n")
    else:
        assert caplog.messages == [f"70% after 10 s  {first}", f"100% after 20 s  {last}"]
