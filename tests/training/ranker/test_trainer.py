"""Lightning's Trainer from plain settings: its own options, our defaults, one-line refusals."""

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer
from lightning.pytorch.profilers import SimpleProfiler

from lengthwise.errors import ConfigError
from training.config import OptimConfig, TrainConfig
from training.ranker.trainer import callbacks_of, count_steps, make_trainer, trainer_arguments


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"profiler": "fast"}, "profiler"),
        ({"max_time": "five"}, "not a valid duration"),
        ({"max_epochs": "many"}, "max_epochs"),
        ({"precison": 16}, "precison"),
        ({"enable_checkpointing": False}, "enable_checkpointing"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"--trainer: .*{message}"):
        make_trainer(arguments(**settings), callbacks_of(TrainConfig(), tmp_path, None), None)


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
def test_the_rate_follows_the_steps_of_the_trainer(
    settings: dict[str, Any], steps: tuple[int, int]
) -> None:
    assert count_steps(arguments(**settings), 100) == steps


@pytest.mark.parametrize("settings", [{"max_epochs": -1}, {"max_epochs": 0}])
def test_a_run_without_a_number_of_steps_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="a known number of steps"):
        count_steps(arguments(**settings), 100)


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
def test_bf16_is_used_where_asked_for_or_faster(
    precision: str | None,
    capabilities: dict[str, object],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: capabilities)
    assert arguments(precision=precision)["precision"] == expected
