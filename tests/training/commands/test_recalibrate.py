"""`recalibrate`: one more model, and everything else as it was."""

import json

import pytest

from lengthwise.bundle import ModelBundle
from tests.training.commands.test_evaluate import COLUMNS, write_table
from training.__main__ import main


def test_recalibration_adds_a_model_and_leaves_the_scores_alone(tiny_bundle, tmp_path, capsys):
    columns = ["--data", str(write_table(tmp_path / "logs.jsonl", 200)), *COLUMNS]
    out = tmp_path / "bundle"
    other = ["--target-model", "other", "--json", *columns]
    assert main(["recalibrate", "--bundle", str(tiny_bundle.path), "--out", str(out), *other]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 200
    unnamed = ["--bundle", str(out), "--target-model", "", *columns]
    assert main(["recalibrate", *unnamed]) == 2
    assert "target_model is empty" in capsys.readouterr().err
    written = ModelBundle.load(out)
    assert set(written.manifest.calibration) == {"tiny-llm", "other"}
    assert written.manifest.files == tiny_bundle.manifest.files
    assert written.manifest.revision != tiny_bundle.manifest.revision

    assert main(["evaluate", "--bundle", str(out), *other]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["n"] == 200
    assert result["tau_b"] > 0.5
    assert result["ceiling"] is None
    assert result["baselines"]["tfidf_ridge"] is None
    assert result["coverage"]["0.5"] == pytest.approx(0.5, abs=0.1)
    assert result["tau_b_ci"][0] < result["tau_b"] < result["tau_b_ci"][1]

    of_run = ["--bundle", str(tmp_path), "--target-model", "third", *columns]
    assert main(["recalibrate", *of_run]) == 0
    assert "third" in ModelBundle.load(out).manifest.calibration
