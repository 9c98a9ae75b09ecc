"""References to bundles: a folder first, else the registry; figures as words."""

import math
from pathlib import Path

import pytest

from lengthwise.bundle import ModelBundle
from lengthwise.errors import BundleError, ConfigError
from training.release.registry import figures_of, find_bundle, show_tau_b


def test_a_folder_is_found_without_a_store(tiny_bundle: ModelBundle, tmp_path: Path) -> None:
    found = find_bundle(str(tiny_bundle.path), str(tmp_path / "none"))
    assert found.manifest == tiny_bundle.manifest
    assert figures_of(found.manifest)["revision"] == tiny_bundle.manifest.revision


@pytest.mark.parametrize("reference", ["no/folder", "folder", "name/1x", "name/²"])
def test_what_is_no_version_is_taken_for_a_folder(reference: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is not a model bundle"):
        find_bundle(reference, str(tmp_path))


@pytest.mark.parametrize("reference", ["name/1", "name@champion", "models:/name/12"])
def test_a_version_is_looked_up_in_the_store(reference: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no MLflow store"):
        find_bundle(reference, str(tmp_path))


@pytest.mark.parametrize(
    ("tau_b", "interval", "words"),
    [
        (0.5978, [0.58, 0.6154], "0.598 (0.580 to 0.615)"),
        (0.5, None, "0.500"),
        (0.5, [None, None], "0.500"),
        (None, None, "-"),
        (math.nan, None, "-"),
    ],
)
def test_tau_b_is_told_with_its_interval(tau_b: object, interval: object, words: str) -> None:
    assert show_tau_b({"tau_b": tau_b, "tau_b_ci": interval}) == words
    with_bundle = {"tau_b": tau_b, "tau_b_ci": interval, "revision": "3f9c"}
    assert show_tau_b(with_bundle) == words.replace("-", "undefined")
