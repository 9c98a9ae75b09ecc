"""Lightning's Trainer from plain settings, and callbacks: progress, and an interrupt that waits."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer
from lightning.pytorch.profilers import SimpleProfiler

from lengthwise.errors import ConfigError
from training.config import OptimConfig, TrainConfig
from training.ranker.trainer import (
    ResumableInterrupt,
    StepProgress,
    callbacks_of,
    count_steps,
    make_trainer,
    trainer_arguments,
)


def arguments(**settings: Any) -> dict[str, Any]:
    return trainer_arguments(TrainConfig().with_trainer(accelerator="cpu", **settings))


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_settings_become_lightnings_objects_beside_ours(tmp_path: Path) -> None:
    stop = {"class_path": "EarlyStopping", "init_args": {"monitor": "val/tau_b", "patience": 3}}
    given = arguments(callbacks=[stop], profiler="simple", max_time="00:00:00:05")
    ours = callbacks_of(TrainConfig(optim=OptimConfig(ema_decay=0.9)), tmp_path, None)
    trainer = make_trainer(given, ours, None)
    kinds = {type(callback) for callback in trainer.callbacks}
    assert {EarlyStopping, Timer, ModelCheckpoint} <= kinds
    assert {type(callback) for callback in ours} <= kinds
    assert isinstance(trainer.profiler, SimpleProfiler)
    assert (trainer.max_epochs, trainer.num_devices, trainer.loggers) == (2, 1, [])
    assert type(stop["init_args"]) is dict  # The settings stay plain values.


def test_what_lightning_refuses_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--trainer: .*precison"):
        arguments(precison=16)
    with pytest.raises(ConfigError, match=r"--trainer: .*enable_checkpointing"):
        make_trainer(
            arguments(enable_checkpointing=False), callbacks_of(TrainConfig(), tmp_path, None), None
        )


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, (100, 200)),
        ({"max_epochs": 3, "accumulate_grad_batches": 8}, (13, 39)),
        ({"limit_train_batches": 0.5}, (50, 100)),
        ({"limit_train_batches": 7}, (7, 14)),
        ({"max_steps": 30}, (100, 30)),
        ({"max_epochs": -1, "max_steps": 30}, (100, 30)),
    ],
)
def test_the_rate_follows_the_steps_of_the_trainer(settings, steps):
    assert count_steps(arguments(**settings), 100) == steps


def test_a_run_without_a_number_of_steps_is_refused() -> None:
    for epochs in (-1, 0):
        with pytest.raises(ConfigError, match="a known number of steps"):
            count_steps(arguments(max_epochs=epochs), 100)


@pytest.mark.parametrize(("max_steps", "interval"), [(-1, 0.25), (3, 3), (90, 25)])
def test_a_short_run_is_validated_at_its_end(max_steps: int, interval: float) -> None:
    given = arguments(max_steps=max_steps)
    count_steps(given, 100)
    assert given["val_check_interval"] == interval


def test_several_devices_learn_by_ddp_as_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    ddp = "ddp_find_unused_parameters_true"
    assert arguments()["strategy"] == "auto"
    assert arguments(devices=2)["strategy"] == ddp
    assert arguments(devices=2, strategy="fsdp")["strategy"] == "fsdp"
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    found = arguments()
    assert (found["devices"], found["num_nodes"], found["strategy"]) == (4, 2, ddp)


@pytest.mark.parametrize(
    ("precision", "capabilities", "expected"),
    [
        ("32-true", {"amx_bf16": True}, "32-true"),
        ("bf16-mixed", {}, "bf16-mixed"),
        (None, {}, "32-true"),
        (None, {"avx512_bf16": True, "cpu_name": "AMD Zen 4"}, "bf16-mixed"),
        (None, {"avx512_bf16": True, "cpu_name": "Intel Xeon"}, "32-true"),
        (None, {"avx512_bf16": 1, "amx_bf16": True, "cpu_name": "Intel Xeon"}, "bf16-mixed"),
    ],
)
def test_bf16_is_used_where_asked_for_or_faster(precision, capabilities, expected, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: capabilities)
    assert arguments(precision=precision)["precision"] == expected


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
    caplog.set_level("INFO", "training.ranker.trainer")
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
