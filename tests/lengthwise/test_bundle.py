"""A bundle is whole and verified, or there is none."""

import json
import re
from dataclasses import replace

import pytest

from lengthwise.bundle import (
    FP32,
    INT8,
    MANIFEST,
    TOKENIZER,
    LengthCurve,
    ModelBundle,
    read_manifest,
)
from lengthwise.errors import BundleError
from scoring_service.__main__ import main


@pytest.fixture
def bundle(write_bundle, tmp_path):
    return write_bundle(tmp_path / "bundle")


def change_manifest(bundle, **values):
    path = bundle.path / MANIFEST
    content = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({k: v for k, v in content.items() if v != "absent"}))


def test_what_is_written_is_loaded(bundle):
    again = ModelBundle.load(bundle.path)
    assert again == ModelBundle.load(bundle.path.parent)  # the folder of a run
    assert again.manifest == bundle.manifest
    assert set(again.manifest.files) == {p.name for p in bundle.path.iterdir()} - {MANIFEST}
    assert again.tokenizer_path.name == TOKENIZER


def test_the_revision_changes_with_any_file_and_any_field(bundle):
    manifest = bundle.manifest
    assert len(manifest.revision) == 12
    assert replace(manifest).revision == manifest.revision
    changes = [{"name": "other"}, {"calibration": {}}, {"golden": {"yes": 1.0}}]
    changes += [{"files": {**manifest.files, name: "0" * 64}} for name in manifest.files]
    found = {replace(manifest, **change).revision for change in changes}
    assert len(found - {manifest.revision}) == len(changes)


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_text("x")])
def test_a_missing_or_damaged_file_is_refused(bundle, damage):
    damage(bundle.path / FP32)
    with pytest.raises(BundleError, match=f"{FP32}.*export the bundle again"):
        ModelBundle.load(bundle.path)


SUM = "0" * 64
CURVE = {"scores": [0.0, 1.0], "quantiles": {"0.5": [1.0, 2.0]}}
FILES = {FP32: SUM, TOKENIZER: SUM}
WRONG = {
    "name": ["", "x" * 201, "two\nlines", 3],
    "label": [None, "absent"],
    "colour": ["red"],
    "label_tokenizer": [["t"]],
    "max_prompt_tokens": [0, 1_000_000_000, 32.0, True],
    "files": [
        *([], {FP32: SUM}, {TOKENIZER: SUM}, FILES | {TOKENIZER: "abc"}),
        *(FILES | {name: SUM} for name in ("../secret", "/etc/passwd", MANIFEST)),
    ],
    "score_direction": ["lower_is_longer"],
    "training": ["x"],
    "dataset": [[1]],
    "metrics": [1],
    "history": [[1, 2], 5],
    "calibration": [[CURVE], {"m": {**CURVE, "scores": [1.0, 0.0]}}, {"a\nb": CURVE}],
    "golden": [{"yes": value} for value in ("1", True, float("nan"), float("inf"))],
    "mlflow_run_id": [7],
    "format": [1.5, 99],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WRONG.items() for value in values]
)
def test_a_field_of_another_type_or_range_is_one_error_line(bundle, capsys, field, value):
    change_manifest(bundle, **{field: value})
    assert main(["serve", "--bundle", str(bundle.path)]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: .*\n", error)
    assert any(text in error for text in (field, "is not a finite number", "not iterable"))


def test_a_newer_description_of_requests_is_refused(bundle):
    assert bundle.manifest.description is None
    change_manifest(bundle, training={"data": {"description": 1}})
    assert read_manifest(bundle.path).description == 1
    change_manifest(bundle, training={"data": {"description": 2}})
    with pytest.raises(BundleError, match="descriptions of version 2, known here is 1"):
        read_manifest(bundle.path)


def test_a_manifest_of_many_megabytes_is_not_read(bundle, monkeypatch):
    monkeypatch.setattr("lengthwise.bundle.MAX_MANIFEST_BYTES", 10)
    with pytest.raises(BundleError, match="larger than 10 bytes"):
        read_manifest(bundle.path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *[('{"format": 1, "golden": {"a": 1e999}}', "cannot be read"), ("{", "cannot be read")],
        *[("[" * 100_000, "cannot be read"), ("[]", "not of format"), ("3", "not of format")],
    ],
)
def test_a_manifest_that_is_no_finite_object_is_refused(bundle, text, message):
    (bundle.path / MANIFEST).write_text(text)
    with pytest.raises(BundleError, match=message):
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


CURVE = {"scores": [0, 1, 3], "quantiles": {"0.9": [20, 40, 80], "0.5": [10, 20, 40]}}


@pytest.mark.parametrize(
    ("score", "expected"), [(-9, 10), (0, 10), (0.5, 15), (1, 20), (2, 30), (3, 40), (99, 40)]
)
def test_the_estimate_is_linear_between_points_and_then_constant(score, expected):
    estimate = LengthCurve.parse("llm", CURVE).at(score)
    assert estimate.expected_tokens == expected
    assert estimate.quantiles == {0.5: expected, 0.9: 2 * expected}
    assert list(estimate.quantiles) == [0.5, 0.9]


def test_the_mean_is_the_expectation_where_it_is_given():
    assert LengthCurve.parse("llm", CURVE | {"mean": [1, 2, 3]}).at(1).expected_tokens == 2


def test_equal_scores_take_the_last_of_them():
    curve = LengthCurve.parse("llm", {"scores": [0, 1, 1], "quantiles": {"0.5": [1, 2, 9]}})
    assert curve.at(1).expected_tokens == 9


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"scores": [0, 1]},
        {"scores": [], "quantiles": {"0.5": []}},
        {"scores": [1, 0], "quantiles": {"0.5": [1, 2]}},
        {"scores": [0, 1], "quantiles": {"0.5": [1]}},
        {"scores": [0, 1], "quantiles": {"half": [1, 2]}},
        {"scores": [0, 1], "quantiles": {"0.9": [1, 2]}},
        {"scores": [0, 1], "quantiles": {"1.5": [1, 2], "0.5": [1, 2]}},
        {"scores": [0, 1], "quantiles": {"0.5": [-1, 2]}},
    ],
)
def test_a_malformed_curve_is_refused(broken):
    with pytest.raises(BundleError, match=r"'llm' .*calibrate again"):
        LengthCurve.parse("llm", broken)
