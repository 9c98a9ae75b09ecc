"""`python -m training fit` end to end on a tiny random encoder, and what it does with bad input."""

import json
import shutil
import signal
import sqlite3
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from datasets import Dataset, load_dataset

from lengthwise.bundle import FP32, INT8, MANIFEST, ModelBundle
from lengthwise.tables.reading import read_table
from training.__main__ import main
from training.config import EncoderConfig, OptimConfig, TrainConfig
from training.data.provenance import training_data, unseen
from training.data.records import PromptResponse
from training.data.synthetic import generate
from training.recipes import RECIPES

Capture = pytest.CaptureFixture[str]

RECORDS, ATTAINABLE = generate(400, seed=5)


@pytest.fixture
def fit(tiny_bert, tmp_path):
    """Runs the demo recipe on a card, small and fast; settings as on the command line."""

    def run(card: Path | str, *settings: str, out: str = "out") -> int:
        return main(
            [
                "fit", "demo", "--out", str(tmp_path / out),
                "--mlruns-dir", str(tmp_path / "mlruns"),
                "--data.dataset", str(card), "--encoder.backbone", str(tiny_bert),
                "--optim.encoder_lr", "3e-3", "--batch_size", "16", "--threads", "1",
                "--no-student", *settings,
            ]
        )  # fmt: skip

    return run


def last_json(capsys: Capture) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.slow
def test_a_run_ends_in_a_bundle_a_test_split_and_a_champion(fit, make_card, tmp_path, capsys):
    card = make_card(RECORDS)
    options = ["--keep-checkpoints", "--trainer.profiler=simple"]
    assert fit(card, "--epochs", "6", *options, "--json") == 0
    result = last_json(capsys)
    bundle = ModelBundle.load(str(result["bundle"]))
    assert "Worst errors" in (tmp_path / "out" / "ranker.html").read_text()
    held_out = read_table(tmp_path / "out" / "test.parquet")
    assert list(held_out.columns) == ["prompt", "output_tokens", "model"]
    assert len(held_out) == result["test_prompts"]
    assert result["champion"] is True
    assert 0.4 < float(str(result["tau_b"])) <= ATTAINABLE + 0.1
    assert bundle.manifest.metrics["tau_b"] == result["tau_b"]
    assert len(bundle.manifest.history) >= 12
    assert {"step", "epoch", "train/loss", "val/tau_b"} <= set(bundle.manifest.history[0])
    checkpoints = tmp_path / "out" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["best.ckpt", "last.ckpt"]
    assert fit(card, "--resume") == 2
    assert "holds no interrupted run" in one_error_line(capsys)

    assert fit(card, "--epochs", "1", "--optim.encoder_lr", "0", "--json") == 0
    assert last_json(capsys)["champion"] is False
    assert not checkpoints.exists()


@pytest.mark.slow
def test_prompts_unknown_to_the_tokenizer_have_undefined_figures(
    fit, tmp_path, capsys, caplog, tiny_bert
):
    table = tmp_path / "emoji.jsonl"
    rows = ({"prompt": chr(0x1F300 + n), "output_tokens": n % 50 + 1} for n in range(600))
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert fit(str(table), "--epochs", "1") == 0
    assert f"become 1 sequences of tokens by the tokenizer of {tiny_bert}" in caplog.text
    shown = capsys.readouterr().out
    assert "tau_b                   undefined  (no interval)" in shown
    assert "tau_b, TF-IDF + ridge   undefined" in shown
    assert "registry                version 1: its tau_b is not known or undefined" in shown
    metrics = ModelBundle.load(tmp_path / "out" / "bundle").manifest.metrics
    assert metrics["tau_b"] is metrics["tau_b_tfidf_ridge"] is metrics["tau_b_ci"][0] is None
    assert ">undefined</td>" in (tmp_path / "out" / "ranker.html").read_text()
    assert main(["list", "--mlruns-dir", str(tmp_path / "mlruns")]) == 0
    assert capsys.readouterr().out.count("undefined") == 3
    bundle, data = str(tmp_path / "out" / "bundle"), ["--data", str(tmp_path / "out/test.parquet")]
    assert main(["evaluate", "--bundle", bundle, "--against", bundle, *data]) == 0
    shown = capsys.readouterr().out
    assert "tau_b                        undefined" in shown
    assert "difference                   undefined" in shown
    assert main(["evaluate", "--bundle", bundle, "--gate", *data]) == 2
    assert "has no tau_b of its test prompts" in capsys.readouterr().err


@pytest.mark.slow
def test_a_folder_of_load_dataset_trains_a_ranker(fit, tmp_path, capsys):
    place = tmp_path / "sets"
    (place / "data").mkdir(parents=True)
    rows = Dataset.from_list([asdict(record) for record in RECORDS])
    rows.to_parquet(place / "data/train-0.parquet")
    assert len(load_dataset(str(place), split="train")) == len(RECORDS)
    assert fit(f"hf:{place}:train", "--epochs", "3", "--json") == 0
    assert float(str(last_json(capsys)["tau_b"])) > 0.3
    assert ModelBundle.load(tmp_path / "out" / "bundle").manifest.dataset["id"] == "sets-train"


@pytest.mark.slow
def test_a_run_repeats_from_its_config_to_the_same_weights(finished, tmp_path, capsys):
    out, bundle = finished
    assert (
        main(["fit", "--config", str(out / "config.yaml"), "--out", str(tmp_path / "again")]) == 0
    )
    again = ModelBundle.load(tmp_path / "again" / "bundle")
    assert again.manifest.files == bundle.manifest.files
    weights = [
        torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
        for folder in (out, tmp_path / "again")
    ]
    for name, tensor in weights[0].items():
        assert tensor.numpy().tobytes() == weights[1][name].numpy().tobytes(), name
    first, second = (
        yaml.safe_load((f / "config.yaml").read_text()) for f in (out, again.path.parent)
    )
    assert first | {"out": ""} == second | {"out": ""}
    assert first["trainer"]["gradient_clip_val"] is None


@pytest.mark.slow
def test_trainer_options_are_lightnings_own(finished, tmp_path, capsys):
    """Steps, profiler, callbacks and time end a run early; its last step is validated."""
    out, _ = finished
    repeat = ["fit", "--config", str(out / "config.yaml"), "--json"]
    options = ["--trainer.max_steps", "3", "--trainer.callbacks+=DeviceStatsMonitor"]
    profiler = ["--trainer.profiler", "SimpleProfiler", "--trainer.profiler.dirpath", str(tmp_path)]
    profiler += ["--trainer.profiler.filename", "profile"]
    assert main([*repeat, "--out", str(tmp_path / "steps"), *options, *profiler]) == 0
    result = last_json(capsys)
    history = ModelBundle.load(result["bundle"]).manifest.history
    assert [point["step"] for point in history] == [3.0]
    assert result["encoder_passes"] == 3 * 16
    assert "run_training_batch" in (tmp_path / "fit-profile.txt").read_text()

    options = ["--trainer.max_time", "00:00:00:01", "--epochs", "1000"]
    assert main([*repeat, "--out", str(tmp_path / "time"), *options]) == 0
    assert last_json(capsys)["encoder_passes"] < 100_000


def test_a_wrong_trainer_option_is_one_line_in_the_users_words(fit, make_card, tmp_path, capsys):
    card = make_card(RECORDS)
    for words, message in {
        ("--trainer.max_steps", "many"): "trainer.max-steps is 'many'; it takes int",
        ("--trainer.precison", "16"): "unrecognized arguments: --trainer.precison=16",
        ("--trainer.callbacks", "Nope"): "trainer.callbacks is 'Nope'; it takes Union[list[Callb",
        ("--trainer.callbacks", "EarlyStopping"): "monitor is missing",
        ("--trainer.max_time", "five"): "--trainer: `Timer(duration='five')` is not a valid",
        ("--trainer.strategy", "fastest"): "fastest",
        ("--config", str(tmp_path / "none.yaml")): "none.yaml",
    }.items():
        assert fit(card, *words) == 2
        assert message in one_error_line(capsys)
    (tmp_path / "other.yaml").write_text("trainer: {max_epoch: 3}")
    assert fit(card, "--config", str(tmp_path / "other.yaml")) == 2
    assert "does not accept option 'max-epoch'" in one_error_line(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_bundle_is_remade_from_its_checkpoint_to_the_last_bit(finished, tmp_path, capsys, caplog):
    out, logged = finished
    assert {FP32, INT8} < set(logged.manifest.files)
    assert logged.manifest.calibration
    assert str(Path(__file__).parents[3]).encode() not in logged.model_path("fp32").read_bytes()

    run, mlruns = logged.manifest.mlflow_run_id, tmp_path / "mlruns"
    shutil.copytree(out.parent / "mlruns", mlruns)
    artifacts = mlruns / "artifacts" / run / "artifacts"
    with sqlite3.connect(mlruns / "mlflow.db") as database:  # The copy has artefacts of its own.
        database.execute("update runs set artifact_uri = ?", (f"file://{artifacts}",))
    for name in (FP32, INT8):  # What an export of old wrote is not read.
        (artifacts / "bundle" / name).unlink()
    content = json.loads((artifacts / "bundle" / MANIFEST).read_text())
    content["calibration"]["llama"] = {"scores": [0.0], "quantiles": {"0.5": [1.0]}}
    (artifacts / "bundle" / MANIFEST).write_text(json.dumps(content))
    again = tmp_path / "deep" / "again"
    rebuild = ["export", "--run", run, "--out", str(again), "--mlruns-dir", str(mlruns)]
    rebuild += ["--rebuild", "--dataset", str(out.parent / "logs.jsonl")]
    assert main(rebuild) == 0
    assert ModelBundle.load(again).manifest == logged.manifest
    assert "not calibrated any more for llama" in caplog.text

    capsys.readouterr()
    (artifacts / "checkpoint" / "scorer.json").unlink()
    assert main(rebuild) == 2
    assert "logged too little" in one_error_line(capsys)
    assert ModelBundle.load(again).manifest == logged.manifest


@pytest.mark.slow
@pytest.mark.parametrize("average", [(), ("--optim.ema_decay", ".8")], ids=["plain", "averaged"])
def test_an_interrupted_run_resumes_to_the_same_end(
    average, fit, make_card, tmp_path, capsys, monkeypatch
):
    from training.ranker.module import LengthRanker

    card = make_card(RECORDS)
    assert fit(card, "--json", *average, out="whole") == 0
    whole = last_json(capsys)
    step_of = LengthRanker.training_step
    for number, stop in enumerate((7, 23)):

        def step_and_interrupt(self, batch, batch_idx, stop=stop):  # type: ignore[no-untyped-def]
            if self.global_step == stop:
                signal.raise_signal(signal.SIGINT)
            return step_of(self, batch, batch_idx)

        monkeypatch.setattr(LengthRanker, "training_step", step_and_interrupt)
        assert fit(card, *average, *(["--resume"] if number else []), out="parts") == 130
        assert not (tmp_path / "parts" / "bundle").exists()
    monkeypatch.setattr(LengthRanker, "training_step", step_of)
    capsys.readouterr()
    assert fit(card, *average, "--resume", "--epochs", "3", out="parts") == 2
    assert "another trainer" in capsys.readouterr().err
    assert fit(card, *average, "--resume", "--json", out="parts") == 0
    parts = last_json(capsys)
    for key in ("tau_b", "tau_b_fp32", "encoder_passes"):
        assert parts[key] == pytest.approx(whole[key], abs=1e-6)
    histories = [
        ModelBundle.load(str(result["bundle"])).manifest.history for result in (whole, parts)
    ]
    for one, other in zip(*histories, strict=True):
        assert one["val/tau_b"] == pytest.approx(other["val/tau_b"], abs=1e-6)
        assert one["train/loss"] == pytest.approx(other["train/loss"], abs=1e-5)


@pytest.mark.slow
def test_each_length_of_a_reasoning_model_has_a_head_and_bundle(fit, tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows = [
        {
            "prompt": record.prompt,
            "output_tokens": record.output_tokens + answer,
            "reasoning_tokens": record.output_tokens,
            "group": record.prompt.split()[0],
        }
        # The answers know nothing of the prompt.
        for record, answer in zip(RECORDS, rng.integers(1, 50, len(RECORDS)).tolist(), strict=True)
    ]
    for row in rows[::10]:
        row["reasoning_tokens"] = 0
    table = tmp_path / "logs.parquet"
    pd.DataFrame(rows).to_parquet(table)
    assert fit(str(table), "--data.heads", '["reasoning_tokens"]', "--json") == 0
    result = last_json(capsys)
    reasoning = result["heads"]["reasoning_tokens"]
    assert min(result["tau_b"], reasoning["tau_b"]) > 0.3
    assert reasoning["test_prompts"] < result["test_prompts"]
    assert {"tau_b_within_groups", "tau_b_group_means"} <= set(result)
    labels = ("output_tokens", "reasoning_tokens")
    for label, figures in zip(labels, (result, reasoning), strict=True):
        manifest = ModelBundle.load(figures["bundle"]).manifest
        assert (manifest.label, figures["label"]) == (label, label)
        assert manifest.metrics["tau_b"] == figures["tau_b"]
        assert "val/tau_b_reasoning_tokens" in manifest.history[0]
    assert set(labels) < set(read_table(tmp_path / "out" / "test.parquet").columns)

    table = str(tmp_path / "out" / "test.parquet")
    options = ["--group-column", "group", "--json"]
    assert main(["evaluate", "--bundle", reasoning["bundle"], "--data", table, *options]) == 0
    again = last_json(capsys)
    assert again["n"] == reasoning["test_prompts"]
    assert again["tau_b"] == pytest.approx(reasoning["tau_b"])
    assert again["tau_b_within_groups"] == pytest.approx(reasoning["tau_b_within_groups"])
    assert again["baselines"]["group_means"] == pytest.approx(reasoning["tau_b_group_means"])


@pytest.mark.slow
def test_each_data_set_has_a_head_and_a_bundle_of_its_own(fit, tmp_path, capsys):
    tables = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    frame = pd.DataFrame(RECORDS)
    frame.to_json(tables[0], orient="records", lines=True)
    frame["output_tokens"] = 10_000 // frame["output_tokens"]  # One head could not learn both.
    frame[:300].to_json(tables[1], orient="records", lines=True)
    settings = ["--data.also", f"{tables[1]}*2", "--data.head-per-dataset", "--epochs", "6"]
    assert fit(str(tables[0]), *settings, "--data.framed", "0", "--json") == 0
    first = last_json(capsys)
    second = first["heads"][str(tables[1])]
    assert Path(second["bundle"]).name == "bundle-second"
    assert min(first["tau_b"], second["tau_b"]) > 0.3
    # The encoder has seen the prompts of both sets.
    own = training_data(ModelBundle.load(second["bundle"]).manifest, None)
    assert len(unseen(own.heads[0].splits.train, own)[0]) == 0


@pytest.fixture(scope="module")
def taught(tmp_path_factory, tiny_bert):
    """Folder of a trained teacher, and the command line of its students."""
    root = tmp_path_factory.mktemp("taught")
    table = root / "logs.jsonl"
    pd.DataFrame(RECORDS).to_json(table, orient="records", lines=True)
    common = ["--mlruns-dir", str(root / "mlruns"), "--data.dataset", str(table), "--threads", "1"]
    encoder = ["--encoder.backbone", str(tiny_bert), "--optim.encoder-lr", "3e-3"]
    run = [*common, *encoder, "--batch-size", "16", "--epochs", "6", "--no-student"]
    assert main(["fit", "demo", "--out", str(root / "teacher"), *run]) == 0
    small = ["fit", "small", *common, "--epochs", "20", "--batch-size", "32"]
    return root, [*small, "--optim.encoder-lr", "1e-2", "--encoder.width", "16"]


@pytest.mark.slow
def test_a_student_learns_its_teachers_scores_and_is_a_bundle(taught, capsys, caplog):
    root, small = taught
    more = root / "more.jsonl"
    others = [record.prompt for record in generate(900, seed=6)[0]]
    more.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in others))
    out = ["--out", str(root / "small"), "--teacher", str(root / "teacher" / "bundle")]
    assert main([*small, *out, "--data.unlabelled", str(more), "--json"]) == 0
    result = last_json(capsys)
    teacher = ModelBundle.load(root / "teacher" / "bundle").manifest
    bundle = ModelBundle.load(result["bundle"])
    about = bundle.manifest.dataset["teacher"]
    assert about == {"revision": teacher.revision, "unlabelled_prompts": pytest.approx(700, abs=90)}
    assert result["tau_b"] > teacher.metrics["tau_b"] - 0.1
    assert (bundle.manifest.name, result["has_int8"]) == ("logs-small", False)
    assert bundle.manifest.golden
    assert bundle.model_path().stat().st_size < 60_000
    kept = read_table(root / "small" / "teacher.parquet")
    assert list(kept.columns) == ["prompt", teacher.revision]
    assert not set(kept["prompt"]) & set(read_table(root / "small" / "test.parquet")["prompt"])
    assert f"{about['unlabelled_prompts']} prompts without lengths" in caplog.text

    rebuild = ["export", "--run", result["mlflow_run_id"], "--out", str(root / "again")]
    assert main([*rebuild, "--mlruns-dir", str(root / "mlruns"), "--rebuild"]) == 0
    assert ModelBundle.load(root / "again").manifest == bundle.manifest


@pytest.mark.slow
def test_a_run_starts_from_the_encoder_of_a_bundle(taught, fit, capsys):
    root, _ = taught
    data = ["--data.dataset", str(root / "logs.jsonl"), "--mlruns-dir", str(root / "mlruns")]
    options = ["--out", str(root / "next"), *data, "--epochs", "1", "--no-student", "--json"]
    bundle = ["--encoder.backbone", str(root / "teacher" / "bundle")]
    assert main(["fit", "demo", *options, *bundle, "--optim.encoder-lr", "0"]) == 0
    result = last_json(capsys)
    teacher = ModelBundle.load(root / "teacher" / "bundle").manifest
    assert result["tau_b"] > teacher.metrics["tau_b"] - 0.1
    assert main(["fit", "demo", *options, *bundle, "--mlruns-dir", str(root / "none")]) == 2
    assert "holds no" in one_error_line(capsys)


@pytest.mark.slow
def test_the_demo_distils_a_small_ranker_too(fit, make_card, tmp_path, capsys):
    settings = ["--epochs", "1", "--split.train-prompts", "100", "--student"]
    assert fit(make_card(RECORDS), *settings, "--json") == 0
    result = last_json(capsys)
    large, small = (ModelBundle.load(each["bundle"]).manifest for each in (result, result["small"]))
    assert result["small"]["bundle"] == str(tmp_path / "out" / "small" / "bundle")
    # The curves are calibrated on all prompts beyond the limit.
    assert small.dataset["teacher"] == {"revision": large.revision, "unlabelled_prompts": 0}
    assert small.dataset["test_digest"] == large.dataset["test_digest"]


@pytest.mark.slow
def test_a_student_without_a_teacher_trains_one_first(taught, capsys, monkeypatch, tiny_bert):
    root, small = taught
    encoder = EncoderConfig(backbone=str(tiny_bert))
    best = TrainConfig(encoder=encoder, optim=OptimConfig(encoder_lr=3e-3), batch_size=16)
    monkeypatch.setitem(RECIPES, "best", ("", best))
    assert main([*small, "--out", str(root / "both"), "--data.unlabelled", "[]", "--json"]) == 0
    assert last_json(capsys)["tau_b"] > 0.2
    ModelBundle.load(root / "both" / "teacher" / "bundle")


@pytest.mark.slow
def test_a_teacher_that_does_not_fit_is_one_line(fit, taught, capsys, tiny_bert):
    root, small = taught
    teacher = str(root / "teacher" / "bundle")
    for settings, message in {
        ("--teacher", "/no/such"): "/no/such",
        ("--teacher", teacher, "--split.seed", "1"): "prompts that are held out here",
        ("--teacher", teacher, "--data.heads", "answer_tokens"): "no answer_tokens",
        ("--teacher", teacher, "--loss.teacher-weight", "0"): "--teacher has no effect",
        ("--loss.teacher-weight", "0"): "the vocabulary of a teacher",
        ("--teacher", teacher, "--encoder.layers", "0"): "1 or more",
        ("--teacher", teacher, "--encoder.backbone", str(tiny_bert)): "0 unless encoder",
        ("--teacher", teacher, "--data.unlabelled", "/no/such.jsonl"): "/no/such.jsonl",
    }.items():
        assert main([*small, "--out", str(root / "none"), *settings]) == 2
        assert message in one_error_line(capsys)
    assert not (root / "none").exists()


def one_error_line(capsys: Capture) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[-1].startswith("error: ")
    assert "Traceback" not in captured.err
    return lines[-1]


@pytest.mark.parametrize(
    ("records", "changes", "settings", "message"),
    [
        (RECORDS, {"fields": {"output_tokens": "length"}}, [], "no column 'length'"),
        (RECORDS, {"sha256": "0" * 64}, [], "the card says 000000000000"),
        (RECORDS, {"rows": 7}, [], "the card says 7"),
        (RECORDS, {"licenze": "MIT"}, [], "licenze"),
        ([], {}, [], "no rows"),
        ([PromptResponse(prompt="a", output_tokens=9)] * 8, {}, [], "only 1 distinct"),
        (RECORDS[:1], {}, [], "only 1 distinct"),
        ([replace(r, output_tokens=9) for r in RECORDS], {}, [], "every length"),
        (RECORDS, {}, ["--data.heads", '["answer_tokens"]'], "the data has no answer_tokens"),
        (RECORDS, {}, ["--encoder.backbone", "/no/such"], "backbone '/no/such' cannot be loaded"),
        (RECORDS, {}, ["--loss.delta", "2"], "loss.delta is 2"),
        (RECORDS, {}, ["--resume"], "holds no interrupted run"),
    ],
)  # fmt: skip
def test_bad_data_or_settings_are_one_line_and_leave_nothing(
    fit, make_card, tmp_path, capsys, records, changes, settings, message
):
    assert fit(make_card(records, **changes), *settings) == 2
    assert message in one_error_line(capsys)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "mlruns").exists()


def test_an_unknown_recipe_data_set_or_command_lists_known_ones(fit, capsys):
    assert main(["fit", "nothing", "--out", "x"]) == 2
    assert "use one of demo" in one_error_line(capsys)
    assert fit("nothing") == 2
    assert "alpaca-vicuna7b" in one_error_line(capsys)
    assert main(["train"]) == 2
    assert "use one of fit" in one_error_line(capsys)


def test_a_data_folder_without_the_file_is_no_synthetic_one(fit, tmp_path, capsys):
    assert fit("alpaca-vicuna7b", "--data-dir", str(tmp_path)) == 2
    assert "lacks alpaca-vicuna7b/" in one_error_line(capsys)


@pytest.mark.parametrize("blocked", ["mlruns", "out"])
def test_a_folder_that_cannot_be_written_is_one_line(fit, make_card, tmp_path, capsys, blocked):
    (tmp_path / blocked).write_text("a file where a folder should be")
    assert fit(make_card(RECORDS)) == 2
    assert "cannot be written" in one_error_line(capsys)


@pytest.mark.parametrize(
    ("has_int8", "val_drop", "line"),
    [
        (True, 0.0, "INT8 loses              +0.0111 tau_b on test  (validation +0.0000: kept)"),
        (False, 0.02, "INT8 left out           it loses too much tau_b  (validation +0.0200)"),
    ],
)
def test_what_int8_loses_is_told_with_what_it_was_chosen_by(has_int8, val_drop, line, capsys):
    from training.commands.fit import _print_result

    figures = ("tau_b", "tau_b_tfidf_ridge", "train_cpu_s", "onnx_max_abs_diff")
    others = ("test_prompts", "label", "encoder_passes", "bundle", "registry_version", "verdict")
    _print_result(
        dict.fromkeys(figures, 0.5)
        | dict.fromkeys(others, "x")
        | {"tau_b_ci": [0.4, 0.6], "has_int8": has_int8}
        | {"int8_val_tau_b_drop": val_drop, "int8_tau_b_drop": 0.0111 if has_int8 else 0.0}
    )
    assert line in capsys.readouterr().out.splitlines()
