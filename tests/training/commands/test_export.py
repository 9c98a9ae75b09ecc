"""`export`: the bundle of a run, and never over something else."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lengthwise.bundle import ModelBundle
from tests.training.commands.conftest import draw_prompts

Training = Callable[..., tuple[int, Any]]


def test_a_bundle_is_made_again_from_the_prompts_of_its_run_only(
    make_bundle: Callable[..., ModelBundle],
    make_card: Callable[..., Path],
    register: Callable[[str, ModelBundle], str],
    training: Training,
    tmp_path: Path,
) -> None:
    from training.config import DataConfig, TrainConfig
    from training.data.labelled_splits import load_splits

    card = make_card(draw_prompts(300, noise=0.5))
    config = TrainConfig(data=DataConfig(dataset=str(card)))
    described = load_splits(config, None).describe()
    run_id = register("rebuilt", make_bundle(0, training=asdict(config), dataset=described))
    out = tmp_path / "out"

    def rebuild() -> str:
        status, line = training("export", "--run", run_id, "--out", out, "--rebuild")
        assert status == 2
        assert not out.exists()
        return str(line)

    make_card(draw_prompts(290, noise=0.5))
    other = rebuild()
    assert "train_prompts" in other
    assert "--dataset (a card or a table) or --data-dir" in other
    (tmp_path / "logs.parquet").unlink()
    assert "logs.parquet" in rebuild()
    status, line = training("export", "--run", run_id, "--out", out, "--dataset", card)
    assert status == 2
    assert "--rebuild" in line


def test_a_run_without_a_bundle_cannot_be_exported(training: Training, tmp_path: Path) -> None:
    (run,) = [r for r in training("list")[1]["runs"] if r["name"] == "unfinished"]
    status, line = training("export", "--run", run["run_id"], "--out", tmp_path / "out")
    assert status == 2
    assert "did not finish" in line
