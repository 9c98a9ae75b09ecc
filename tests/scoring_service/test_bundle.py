"""A bundle is whole and verified, or there is none."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from scoring_service.bundle import FP32, INT8, MANIFEST, TOKENIZER, ModelBundle, read_manifest
from scoring_service.errors import BundleError


@pytest.fixture
def bundle(write_bundle, tmp_path):
    return write_bundle(tmp_path / "bundle")


def change_manifest(bundle, **values):
    path = bundle.path / MANIFEST
    content = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({k: v for k, v in content.items() if v != "absent"}))


def test_what_is_written_is_loaded(bundle):
    again = ModelBundle.load(bundle.path)
    assert again.manifest == bundle.manifest
    assert set(again.manifest.files) == {p.name for p in bundle.path.iterdir()} - {MANIFEST}
    assert again.tokenizer_path.name == TOKENIZER


def test_the_revision_changes_with_any_file_and_with_nothing_else(bundle):
    manifest = bundle.manifest
    assert len(manifest.revision) == 12
    assert replace(manifest, name="other").revision == manifest.revision
    for name in manifest.files:
        changed = {**manifest.files, name: "0" * 64}
        assert replace(manifest, files=changed).revision != manifest.revision


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_text("x")])
def test_a_missing_or_damaged_file_is_refused(bundle, damage):
    damage(bundle.path / FP32)
    with pytest.raises(BundleError, match=f"{FP32}.*export the bundle again"):
        ModelBundle.load(bundle.path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": 99}, "format"),
        ({"colour": "red"}, "colour"),
        ({"label": "absent"}, "incomplete"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(bundle, values, message):
    change_manifest(bundle, **values)
    with pytest.raises(BundleError, match=message):
        read_manifest(bundle.path)


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_a_manifest_that_is_no_object_is_refused(bundle, text):
    (bundle.path / MANIFEST).write_text(text)
    with pytest.raises(BundleError):
        ModelBundle.load(bundle.path)


def test_a_bundle_that_cannot_be_filled_leaves_the_old_one(bundle):
    def fill(work):
        (work / FP32).write_text("half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        ModelBundle.write(bundle.path, bundle.manifest, fill)
    assert ModelBundle.load(bundle.path).manifest == bundle.manifest
    assert [path.name for path in bundle.path.parent.iterdir()] == [bundle.path.name]


def test_auto_is_int8_where_there_is_one(bundle):
    assert bundle.model_path() == bundle.model_path("fp32") == bundle.path / FP32
    with pytest.raises(BundleError, match="no int8 model"):
        bundle.model_path("int8")
    both = replace(bundle.manifest, files={**bundle.manifest.files, INT8: "0"})
    assert ModelBundle(bundle.path, both).model_path() == bundle.path / INT8
