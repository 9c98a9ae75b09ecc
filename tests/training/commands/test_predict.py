"""`predict` and `test`: the scores and tau_b of a run's checkpoint, by Lightning's Trainer."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from training.__main__ import main
from training.export.bundle_scores import score_prompts


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: object) -> Any:
        assert main([*map(str, words), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.mark.slow
def test_a_checkpoint_predicts_what_its_bundle_scores(finished, said, tmp_path):
    out, bundle, _ = finished
    table = out / "test.parquet"
    prompts = pd.read_parquet(table)["prompt"].tolist()
    expected = score_prompts(bundle, prompts, "fp32")
    places = ["--config", out / "config.yaml"], ["--ckpt-path", out / "checkpoints" / "best.ckpt"]
    for number, place in enumerate(places):
        options = ["--data", table, "--out", tmp_path / f"{number}.parquet"]
        said("predict", *place, *options, "--trainer.accelerator", "cpu")
        found = pd.read_parquet(tmp_path / f"{number}.parquet")
        assert found["prompt"].tolist() == prompts
        assert np.abs(found["score"] - expected).max() < 1e-4


@pytest.mark.slow
def test_a_checkpoint_is_tested_on_its_runs_own_prompts(finished, said):
    out, bundle, _ = finished
    metrics = bundle.manifest.metrics
    run = ["--run", bundle.manifest.mlflow_run_id, "--mlruns-dir", out.parent / "mlruns"]
    for place in (["--config", out / "config.yaml"], [*run, "--data", out / "test.parquet"]):
        result = said("test", *place)
        assert result["test/tau_b"] == pytest.approx(metrics["tau_b_fp32"], abs=1e-3)
        assert result["prompts"] == bundle.manifest.dataset["test_prompts"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "x.jsonl"], "give one of --config, --run and --ckpt-path"),
        (["--run", "1", "--ckpt-path", "y", "--data", "x"], "give one of --config"),
        (["--ckpt-path", "y"], "data is missing"),
        (["--config", "none.yaml"], "none.yaml cannot be read"),
        (["--ckpt-path", "y", "--data", "x.jsonl", "--trainer.devces", "1"], "trainer.devces"),
    ],
)
def test_a_wrong_place_or_option_is_one_line(words, message, capsys):
    for command in ("predict", "test"):
        assert main([command, *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
