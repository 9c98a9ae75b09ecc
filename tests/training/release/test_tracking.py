"""A store: runs, their metrics of the machine, versions and the champion."""

import os

import pandas as pd
import pytest

from lengthwise.errors import ConfigError
from training.config import DataConfig, TrainConfig
from training.data.cards import BUNDLED
from training.data.labelled_splits import load_splits
from training.export.bundle_scores import score_prompts


def test_a_run_names_the_data_that_took_the_place(mlruns, monkeypatch):
    from training.release.tracking import Tracker

    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    labelled = load_splits(TrainConfig(data=DataConfig(dataset="gpteacher-gpt4")), None)
    with Tracker(mlruns, run_name="x") as tracker:
        tracker.log_data(labelled)
    run = tracker.client.get_run(tracker.run_id)
    (used,) = run.inputs.dataset_inputs
    assert used.dataset.name == run.data.tags["dataset"] == BUNDLED
    assert run.data.tags["command"]
    experiment = tracker.client.get_experiment(run.info.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


@pytest.mark.parametrize("lost", [False, True])
def test_a_store_that_breaks_under_a_run_is_a_line_and_fails_it(lost, mlruns, monkeypatch, caplog):
    from mlflow.exceptions import MlflowException

    from training.release.tracking import Tracker

    tracker = Tracker(mlruns, run_name="x")

    def refuse(*_: object, **__: object) -> None:
        raise MlflowException("database or disk is full\nand more")

    monkeypatch.setattr(tracker.client, "log_batch", refuse)
    if lost:
        monkeypatch.setattr(tracker.client, "set_terminated", refuse)
    said = r"cannot be used: database or disk is full; choose"
    with pytest.raises(ConfigError, match=said), tracker:
        tracker.log_metrics({"tau_b": 0.5})
    assert tracker.client.get_run(tracker.run_id).info.status == ("RUNNING" if lost else "FAILED")
    assert ("could not be marked FAILED: database or disk is full" in caplog.text) == lost


@pytest.mark.filterwarnings("ignore")
def test_mlflow_loads_the_champion_and_it_predicts(tiny_bundle, mlruns, monkeypatch):
    import mlflow

    from training.release.tracking import Tracker

    prompts = ["write a long poem", "yes"]
    with Tracker(mlruns, run_name="x") as tracker:
        tracker.log_folder(tiny_bundle.path, "bundle")
        tracker.log_model_files("bundle", prompts)
        version = tracker.register("loadable", "bundle", {"revision": "r"}, "a ranker")
        tracker.promote("loadable", version)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracker.store.uri)
    mlflow.set_tracking_uri(tracker.store.uri)
    model = mlflow.pyfunc.load_model("models:/loadable@champion")
    frame = pd.DataFrame({"prompt": prompts})
    assert model.predict(frame).score.tolist() == score_prompts(tiny_bundle, prompts).tolist()
    assert model.metadata.signature.inputs.input_names() == ["prompt"]
    assert model.metadata.saved_input_example_info is not None
    assert tracker.client.get_model_version("loadable", version).description == "a ranker"
    champion = tracker.champion("loadable")
    assert champion is not None
    assert champion.manifest == tiny_bundle.manifest


@pytest.mark.filterwarnings("ignore")
def test_a_logged_checkpoint_predicts_what_its_network_scores(tiny_bert, mlruns, tmp_path):
    import mlflow

    from training.ranker.encoder import build_scorer, save_scorer
    from training.ranker.inference import load_ranker
    from training.release.tracking import CHECKPOINT_MODEL, Tracker

    prompts = ["write an essay about tea", "name bees"]
    save_scorer(tmp_path, *build_scorer(str(tiny_bert), "mean", seed=0, max_prompt_tokens=9))
    with Tracker(mlruns, run_name="x") as tracker:
        tracker.log_folder(tmp_path, "checkpoint")
        tracker.log_model_files("checkpoint", prompts, CHECKPOINT_MODEL)
    model = mlflow.pyfunc.load_model(str(tracker.logged_folder(tracker.run_id, "checkpoint")))
    expected = load_ranker(tmp_path, TrainConfig()).score(prompts)
    assert model.predict(pd.DataFrame({"prompt": prompts})).score.tolist() == expected.tolist()


@pytest.mark.filterwarnings("ignore")
def test_scoring_in_a_trace_adds_its_steps_and_none_without(tiny_bundle, mlruns, monkeypatch):
    import mlflow

    from training.release.tracking import Tracker

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "kept")
    with Tracker(mlruns, run_name="x") as tracker:
        expected = score_prompts(tiny_bundle, ["a", "b c"])
        with tracker.trace("evaluate", prompts=2):
            assert score_prompts(tiny_bundle, ["a", "b c"]).tolist() == expected.tolist()
        assert os.environ["MLFLOW_TRACKING_URI"] == "kept"
        table = pd.DataFrame({"prompt": ["a"], "score": [0.5]})
        tracker.log_table("eval_results_table.json", table)
    (found,) = mlflow.search_traces(run_id=tracker.run_id, return_type="list")
    assert [s.name for s in found.data.spans] == ["evaluate", "load", "tokenize", "score"]
    assert found.data.spans[1].attributes["revision"] == tiny_bundle.manifest.revision
    run = tracker.client.get_run(tracker.run_id)
    assert "eval_results_table.json" in run.data.tags["mlflow.loggedArtifacts"]
    again = mlflow.load_table("eval_results_table.json", run_ids=[tracker.run_id])
    assert again.to_dict("list") == table.to_dict("list")
