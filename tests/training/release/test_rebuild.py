"""A run's bundle: copied whole, never over another thing, never from a run without one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lengthwise.bundle import Manifest, ModelBundle
from lengthwise.errors import BundleError, ConfigError
from training.release.rebuild import export, restore


def store_of(bundle: Path) -> Any:
    return SimpleNamespace(logged_folder=lambda run_id, name: bundle)


def test_a_copy_replaces_an_older_bundle_and_nothing_else(
    tiny_bundle: ModelBundle, tmp_path: Path
) -> None:
    store, out = store_of(tiny_bundle.path), tmp_path / "out"
    for _ in range(2):
        assert export(store, "run", out).manifest == tiny_bundle.manifest
    (tmp_path / "notes").mkdir()
    assert export(store, "run", tmp_path / "notes").manifest == tiny_bundle.manifest
    for other in (tmp_path, tmp_path / "file"):
        (tmp_path / "file").write_text("work")
        with pytest.raises(ConfigError, match="not a bundle; choose another --out"):
            export(store, "run", other)
    assert (tmp_path / "file").read_text() == "work"


def test_a_run_without_a_checkpoint_is_told_apart(tmp_path: Path) -> None:
    manifest = Manifest(name="m", label="l", label_tokenizer="t", max_prompt_tokens=8)
    with pytest.raises(BundleError, match="logged too little to be exported anew"):
        restore(manifest, tmp_path)
