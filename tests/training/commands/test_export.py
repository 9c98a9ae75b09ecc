"""`export`: the bundle of a run, copied whole and never over something else."""

from types import SimpleNamespace
from typing import Any

import pytest

from lengthwise.errors import ConfigError
from training.commands.export import ExportOptions, copy_bundle


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
