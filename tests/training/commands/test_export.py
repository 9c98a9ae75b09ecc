"""`export`: the bundle of a run, copied whole and never over something else."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lengthwise.bundle import Manifest
from lengthwise.errors import BundleError, ConfigError
from training.commands.export import ExportOptions, copy_bundle, restore


def test_a_bundle_is_made_again_from_the_prompts_of_its_run_only(
    learnt, register, refused, tmp_path
):
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


def test_a_run_without_a_bundle_cannot_be_exported(training, refused, tmp_path):
    client = training.store.client
    experiments = [each.experiment_id for each in client.search_experiments()]
    (run,) = client.search_runs(experiments, "attributes.run_name = 'unfinished'")
    assert "did not finish" in refused("export", "--run", run.info.run_id, "--out", tmp_path / "o")


def test_a_copy_replaces_an_older_bundle_and_nothing_else(tiny_bundle, tmp_path):
    store: Any = SimpleNamespace(logged_folder=lambda run_id, name: tiny_bundle.path)
    (tmp_path / "notes").mkdir()
    for name in ("out", "out", "notes"):
        copied = copy_bundle(store, ExportOptions(run="run", out=tmp_path / name))
        assert copied.manifest == tiny_bundle.manifest
    (tmp_path / "file").write_text("work")
    for other in (tmp_path, tmp_path / "file"):
        with pytest.raises(ConfigError, match="not a bundle; choose another --out"):
            copy_bundle(store, ExportOptions(run="run", out=other))
    assert (tmp_path / "file").read_text() == "work"


def test_a_run_without_a_checkpoint_is_told_apart(tmp_path: Path) -> None:
    manifest = Manifest(name="m", label="l", label_tokenizer="t", max_prompt_tokens=8)
    with pytest.raises(BundleError, match="logged too little to be exported anew"):
        restore(manifest, tmp_path)
