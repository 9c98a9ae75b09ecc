"""`export`: the bundle of a run, and never over something else."""

from pathlib import Path

from tests.training.commands.conftest import Learnt, Refused, Register, Training


def test_a_bundle_is_made_again_from_the_prompts_of_its_run_only(
    learnt: Learnt, register: Register, refused: Refused, tmp_path: Path
) -> None:
    trained, _ = learnt(300)
    (run_id,) = register("rebuilt", 0, **trained)
    export = ("export", "--run", run_id, "--out", tmp_path / "out")
    learnt(290)
    other = refused(*export, "--rebuild")
    assert "train_prompts" in other
    assert "--dataset (a card or a table) or --data-dir" in other
    (tmp_path / "logs.parquet").unlink()
    assert "logs.parquet" in refused(*export, "--rebuild")
    assert not (tmp_path / "out").exists()
    assert "--rebuild" in refused(*export, "--dataset", tmp_path / "card.yaml")


def test_a_run_without_a_bundle_cannot_be_exported(
    training: Training, refused: Refused, tmp_path: Path
) -> None:
    (run,) = [r for r in training("list")[1]["runs"] if r["name"] == "unfinished"]
    assert "did not finish" in refused("export", "--run", run["run_id"], "--out", tmp_path / "out")
