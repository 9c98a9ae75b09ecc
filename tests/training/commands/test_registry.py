"""What the store lists, who may become champion, and how two rankers are compared."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scoring_service.bundle import FP32, MANIFEST, TOKENIZER, ModelBundle
from training.__main__ import main
from training.data.labels import LabelledPrompt
from training.data.records import PromptResponse
from training.data.splits import Splits

WORDS = ("yes", "no", "short", "poem", "long", "essay")
SPLIT = {"seed": 0, "val_fraction": 0.05, "test_fraction": 0.15}


def draw_prompts(count: int) -> list[PromptResponse]:
    """Prompts of the tiny ranker's words, with lengths that follow from them and noise."""
    rng = np.random.default_rng(0)
    records = []
    for number in range(count):
        words = rng.integers(len(WORDS), size=4)
        length = int(np.exp(words.mean() + rng.normal(0, 0.5)) * 20) + 1
        text = " ".join([*(WORDS[word] for word in words), str(number)])
        records.append(PromptResponse(prompt=text, output_tokens=length))
    return records


TEST = draw_prompts(120)
DIGEST = Splits(
    train=[],
    val=[],
    test=[LabelledPrompt(prompt=r.prompt, model="", lengths=(r.output_tokens,)) for r in TEST],
).test_digest


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "test.parquet"
    pd.DataFrame(TEST).to_parquet(path)
    return path


@pytest.fixture(scope="module")
def make_bundle(
    tiny_bundle: ModelBundle, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., ModelBundle]:
    """The tiny ranker with noise on its weights, as if trained and tested on TEST."""

    def make(noise: float, **changes: Any) -> ModelBundle:
        import onnx
        from onnx import numpy_helper

        model = onnx.load(tiny_bundle.model_path())
        weights = model.graph.initializer[0]
        values = numpy_helper.to_array(weights)
        values = values + np.random.default_rng(0).normal(0, noise, values.shape)
        weights.CopyFrom(numpy_helper.from_array(values.astype(np.float32), weights.name))

        def fill(folder: Path) -> None:
            onnx.save(model, folder / FP32)
            shutil.copy(tiny_bundle.tokenizer_path, folder / TOKENIZER)

        figures = {"tau_b": 0.5, "tau_b_ci": [0.4, 0.6]}
        dataset = {"id": "logs", "test_digest": DIGEST}
        manifest = replace(
            tiny_bundle.manifest, training={"split": SPLIT}, dataset=dataset, metrics=figures
        )
        folder = tmp_path_factory.mktemp("bundle") / "bundle"
        return ModelBundle.write(folder, replace(manifest, **changes), fill)

    return make


@pytest.fixture(scope="module")
def mlruns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all tests here: making the database takes a second."""
    from training.release.tracking import Tracker

    root = tmp_path_factory.mktemp("my runs")
    Tracker(root, run_name="unfinished", system_metrics=False).finish("FAILED")
    return root


@pytest.fixture
def register(mlruns: Path) -> Callable[[str, ModelBundle], str]:
    """Log a bundle as a run and register it as a version of the model; returns the run."""
    from training.release.tracking import Tracker

    def add(name: str, bundle: ModelBundle) -> str:
        tracker = Tracker(mlruns, run_name=name, system_metrics=False)
        tracker.log_folder(bundle.path, "bundle")
        tracker.register(name, "bundle", {"verdict": "new"})
        tracker.finish()
        return tracker.run_id

    return add


@pytest.fixture
def training(mlruns: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Runs a command with --json; its status and what it printed, or its error line."""

    def run(*arguments: object) -> tuple[int, Any]:
        status = main([*map(str, arguments), "--mlruns-dir", str(mlruns), "--json"])
        captured = capsys.readouterr()
        if status == 2:
            (line,) = captured.err.splitlines()
            assert captured.out == ""
            return status, line
        return status, json.loads(captured.out)

    return run


def champion(training: Callable[..., tuple[int, Any]], name: str) -> str | None:
    versions = training("list")[1]["versions"]
    marked = [v["version"] for v in versions if v["name"] == name and v["champion"]]
    assert len(marked) <= 1
    return marked[0] if marked else None


def test_a_version_is_promoted_only_where_it_is_provably_better(
    make_bundle: Callable[..., ModelBundle],
    register: Callable[[str, ModelBundle], str],
    training: Callable[..., tuple[int, Any]],
    data: Path,
) -> None:
    for noise in (3, 0, 0):
        register("gated", make_bundle(noise))
    status, result = training("promote", "gated", 1, "--data", data)
    assert (status, result["champion"], result["forced"]) == (0, True, False)
    status, result = training("promote", "gated", 2, "--data", data)
    assert (status, champion(training, "gated")) == (0, "2")
    assert result["difference_ci"][0] > 0
    status, result = training("promote", "gated", 3, "--data", data)
    assert (status, result["champion"], champion(training, "gated")) == (1, False, "2")
    assert "does not beat" in result["verdict"]
    assert training("promote", "gated", 2)[1]["champion"] is True


def test_a_promotion_by_hand_needs_no_proof_and_is_recorded(
    make_bundle: Callable[..., ModelBundle],
    register: Callable[[str, ModelBundle], str],
    training: Callable[..., tuple[int, Any]],
    data: Path,
    tmp_path: Path,
) -> None:
    for noise in (0, 3):
        register("by-hand", make_bundle(noise))
    training("promote", "by-hand", 1)
    other = tmp_path / "other.parquet"
    pd.DataFrame(TEST[:60]).to_parquet(other)
    for source in (data, other):
        assert training("promote", "by-hand", 2, "--data", source)[0] > 0
        assert champion(training, "by-hand") == "1"
    status, result = training("promote", "by-hand", 2, "--data", other, "--force")
    assert (status, result["forced"], champion(training, "by-hand")) == (0, True, "2")
    versions = training("list")[1]["versions"]
    tags = {v["version"]: v for v in versions if v["name"] == "by-hand"}
    assert tags["2"]["promoted_by"] == "hand"
    assert "not the test prompts" in tags["2"]["verdict"]
    assert tags["1"]["promoted_by"] == "gate"


def test_the_test_prompts_of_a_version_are_found_again_from_its_data_set(
    make_bundle: Callable[..., ModelBundle],
    make_card: Callable[..., Path],
    register: Callable[[str, ModelBundle], str],
    training: Callable[..., tuple[int, Any]],
) -> None:
    from training.config import DataConfig, TrainConfig
    from training.data.prepared import prepare

    config = TrainConfig(data=DataConfig(dataset=str(make_card(draw_prompts(900)))))
    trained = {
        "training": asdict(config),
        "dataset": {"id": "logs", "test_digest": prepare(config, None).splits.test_digest},
    }
    for noise in (3, 0):
        register("found-again", make_bundle(noise, **trained))
    training("promote", "found-again", 1)
    status, result = training("promote", "found-again", 2)
    assert (status, result["forced"], champion(training, "found-again")) == (0, False, "2")
    make_card(draw_prompts(800))
    status, line = training("promote", "found-again", 1)
    assert status == 2
    assert "not the test prompts" in line


def test_list_shows_every_run_with_the_figures_of_its_bundle(
    make_bundle: Callable[..., ModelBundle],
    register: Callable[[str, ModelBundle], str],
    training: Callable[..., tuple[int, Any]],
) -> None:
    bundle = make_bundle(1)
    run_id = register("listed", bundle)
    _, found = training("list")
    (run,) = [run for run in found["runs"] if run["run_id"] == run_id]
    assert (run["tau_b"], run["tau_b_ci"]) == (0.5, [0.4, 0.6])
    assert run["revision"] == bundle.manifest.revision
    (failed,) = [run for run in found["runs"] if run["name"] == "unfinished"]
    assert (failed["status"], failed["tau_b"]) == ("FAILED", None)
    assert champion(training, "listed") is None


def test_export_gives_the_bundle_of_the_run(
    make_bundle: Callable[..., ModelBundle],
    register: Callable[[str, ModelBundle], str],
    training: Callable[..., tuple[int, Any]],
    tmp_path: Path,
) -> None:
    bundle = make_bundle(1)
    run_id = register("exported", bundle)
    for _ in range(2):
        status, _ = training("export", "--run", run_id, "--out", tmp_path / "out")
        assert status == 0
        assert ModelBundle.load(tmp_path / "out").manifest == bundle.manifest


def test_export_never_replaces_what_is_not_a_bundle(
    make_bundle: Callable[..., ModelBundle],
    register: Callable[[str, ModelBundle], str],
    training: Callable[..., tuple[int, Any]],
    tmp_path: Path,
) -> None:
    run_id = register("guarded", make_bundle(1))
    (tmp_path / "thesis.tex").write_text("years of work")
    status, line = training("export", "--run", run_id, "--out", tmp_path)
    assert status == 2
    assert "not a bundle; choose another --out" in line
    assert (tmp_path / "thesis.tex").is_file()


def test_a_bundle_is_made_again_from_the_prompts_of_its_run_only(
    make_bundle: Callable[..., ModelBundle],
    make_card: Callable[..., Path],
    register: Callable[[str, ModelBundle], str],
    training: Callable[..., tuple[int, Any]],
    tmp_path: Path,
) -> None:
    from training.config import DataConfig, TrainConfig
    from training.data.prepared import prepare

    card = make_card(draw_prompts(300))
    config = TrainConfig(data=DataConfig(dataset=str(card)))
    described = prepare(config, None).describe()
    run_id = register("rebuilt", make_bundle(0, training=asdict(config), dataset=described))
    out = tmp_path / "out"

    def rebuild() -> str:
        status, line = training("export", "--run", run_id, "--out", out, "--rebuild")
        assert status == 2
        assert not out.exists()
        return str(line)

    make_card(draw_prompts(290))
    other = rebuild()
    assert "train_prompts" in other
    assert "--dataset (a card or a table) or --data-dir" in other
    (tmp_path / "logs.parquet").unlink()
    assert "logs.parquet" in rebuild()
    status, line = training("export", "--run", run_id, "--out", out, "--dataset", card)
    assert status == 2
    assert "--rebuild" in line


def test_compare_says_who_is_better_and_by_how_much(
    make_bundle: Callable[..., ModelBundle],
    register: Callable[[str, ModelBundle], str],
    training: Callable[..., tuple[int, Any]],
    data: Path,
) -> None:
    good, bad = make_bundle(0), make_bundle(3)
    register("compared", bad)
    status, result = training("compare", good.path, "compared/1", "--data", data)
    low, high = result["difference_ci"]
    assert (status, result["better"], result["n"]) == (0, "a", len(TEST))
    assert 0 < low < result["difference"] < high
    assert result["difference"] == pytest.approx(result["a"]["tau_b"] - result["b"]["tau_b"])
    _, swapped = training("compare", "models:/compared/1", good.path, "--data", data)
    assert swapped["better"] == "b"
    assert swapped["difference"] == pytest.approx(-result["difference"])
    _, same = training("compare", good.path, good.path, "--data", data)
    assert (same["better"], same["difference_ci"], same["order_tau_b"]) == (None, [0, 0], 1)


def test_compare_counts_the_prompts_a_ranker_has_learnt_from_and_no_others(
    make_bundle: Callable[..., ModelBundle],
    make_card: Callable[..., Path],
    training: Callable[..., tuple[int, Any]],
    tiny_bundle: ModelBundle,
    tmp_path: Path,
) -> None:
    from training.config import DataConfig, TrainConfig
    from training.data.prepared import prepare

    config = TrainConfig(data=DataConfig(dataset=str(make_card(draw_prompts(900)))))
    prepared = prepare(config, None)
    trained = make_bundle(0, training=asdict(config), dataset=prepared.describe())
    strangers = [replace(record, prompt=f"again {record.prompt}") for record in TEST]
    for part, learnt in (([], 0), (prepared.splits.train[:30], 30), (prepared.splits.test, 0)):
        rows = [PromptResponse(prompt=p.prompt, output_tokens=int(p.observed)) for p in part]
        pd.DataFrame([*strangers, *rows]).to_parquet(tmp_path / "log.parquet")
        _, result = training(
            "compare", trained.path, tiny_bundle.path, "--data", tmp_path / "log.parquet"
        )
        assert result["a"]["num_seen_in_training"] == learnt
        assert result["b"]["num_seen_in_training"] is None


def test_without_json_the_commands_tell_it_in_words(
    make_bundle: Callable[..., ModelBundle],
    register: Callable[[str, ModelBundle], str],
    mlruns: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = register("in-words", make_bundle(0))
    for arguments, words in (
        (["promote", "in-words", "1"], "in-words version 1 is the champion: the first champion"),
        (["list"], "* in-words"),
        (["export", "--run", run, "--out", str(tmp_path / "bundle")], "bundle: tiny revision"),
        (["compare", "in-words/1", "in-words/1", "--data", str(data)], "no difference is proven"),
        (["compare", "in-words/1", "in-words/1", "--data", str(data)], "training: not checked"),
    ):
        assert main([*arguments, "--mlruns-dir", str(mlruns)]) == 0
        assert words in capsys.readouterr().out


def test_equal_lengths_leave_tau_b_undefined_and_say_so(
    make_bundle: Callable[..., ModelBundle],
    training: Callable[..., tuple[int, Any]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = tmp_path / "equal.parquet"
    pd.DataFrame([replace(record, output_tokens=7) for record in TEST]).to_parquet(table)
    path = make_bundle(0).path
    status, result = training("compare", path, path, "--data", table)
    assert (status, result["difference"], result["better"]) == (0, None, None)
    assert "tau_b is undefined" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["promote", "nobody", "1"], "no model 'nobody'"),
        (["compare", "nobody/1", "nobody@champion"], "no model 'nobody'"),
        (["compare", "no/folder", "no/folder"], "is not a model bundle"),
        (["export", "--run", "0" * 32, "--out", "x"], "has no run"),
    ],
)
def test_what_is_not_in_the_store_is_one_line(
    training: Callable[..., tuple[int, Any]], data: Path, arguments: list[str], message: str
) -> None:
    extra = ["--data", data] if arguments[0] == "compare" else []
    status, line = training(*arguments, *extra)
    assert status == 2
    assert message in line


def test_a_run_without_a_bundle_cannot_be_exported(
    training: Callable[..., tuple[int, Any]], tmp_path: Path
) -> None:
    (run,) = [r for r in training("list")[1]["runs"] if r["name"] == "unfinished"]
    status, line = training("export", "--run", run["run_id"], "--out", tmp_path / "out")
    assert status == 2
    assert "did not finish" in line


def test_a_champion_whose_bundle_is_damaged_is_replaced_by_hand_only(
    make_bundle: Callable[..., ModelBundle],
    register: Callable[[str, ModelBundle], str],
    training: Callable[..., tuple[int, Any]],
    mlruns: Path,
    data: Path,
) -> None:
    first = register("damaged", make_bundle(0))
    register("damaged", make_bundle(0))
    training("promote", "damaged", 1)
    (mlruns / "artifacts" / first / "artifacts" / "bundle" / MANIFEST).unlink()
    status, line = training("promote", "damaged", 2, "--data", data)
    assert status == 2
    assert "champion damaged version 1" in line
    assert training("promote", "damaged", 2, "--data", data, "--force")[0] == 0
    assert champion(training, "damaged") == "2"


def test_a_folder_without_a_store_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "--mlruns-dir", str(tmp_path)]) == 2
    assert "holds no MLflow store" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_run_notes_what_the_machine_did(mlruns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from training.release.tracking import Tracker

    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.05")
    tracker = Tracker(mlruns, run_name="watched")
    while not (metrics := tracker.client.get_run(tracker.run_id).data.metrics):
        time.sleep(0.02)
    tracker.finish()
    assert 0 <= metrics["system/cpu_utilization_percentage"] <= 100
