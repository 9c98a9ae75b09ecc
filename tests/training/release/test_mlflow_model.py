"""A registered version is a model that MLflow loads by its alias, with signature and example."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from lengthwise.bundle import ModelBundle
from training.export.bundle_scores import score_prompts
from training.release.mlflow_model import write_model_files

PROMPTS = ["write a long poem", "yes"]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_loads_the_champion_and_it_predicts(
    tiny_bundle: ModelBundle, mlruns: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    from training.release.tracking import Tracker

    write_model_files(tmp_path / "model", PROMPTS)
    with Tracker(mlruns, run_name="x", system_metrics=False) as tracker:
        tracker.log_folder(tiny_bundle.path, "bundle")
        tracker.log_folder(tmp_path / "model", "bundle")
        version = tracker.register("loadable", "bundle", {"revision": "r"}, "a ranker")
        tracker.promote("loadable", version)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracker.store.uri)
    mlflow.set_tracking_uri(tracker.store.uri)
    model = mlflow.pyfunc.load_model("models:/loadable@champion")
    frame = pd.DataFrame({"prompt": PROMPTS})
    assert model.predict(frame).score.tolist() == score_prompts(tiny_bundle, PROMPTS).tolist()
    assert model.metadata.signature.inputs.input_names() == ["prompt"]
    assert model.metadata.saved_input_example_info is not None
    assert tracker.client.get_model_version("loadable", version).description == "a ranker"
    champion = tracker.champion("loadable")
    assert champion is not None
    assert champion.manifest == tiny_bundle.manifest
