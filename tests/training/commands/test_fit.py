"""`python -m training fit` end to end on a tiny random encoder, and what it does with bad input."""

import json
import shutil
import signal
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from lengthwise.bundle import FP32, INT8, MANIFEST, ModelBundle
from lengthwise.tables.reading import read_table
from tests.training.commands.conftest import ATTAINABLE, RECORDS, small_recipe
from tests.training.drawn import generate
from tests.training.ranker.test_training_loop import learnt
from training.__main__ import main
from training.commands import fit as command
from training.config import EncoderConfig
from training.data.provenance import training_data, unseen
from training.ranker.encoder import load_scorer
from training.ranker.module import LengthRanker
from training.ranker.training_loop import load_encoder
from training.recipes import RECIPES, recipe

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def fit(tiny_bert, tmp_path, quick_export):
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
def test_a_run_ends_in_a_bundle_a_test_split_and_a_champion(finished):
    out, bundle, result = finished
    assert "Worst errors" in (out / "ranker.html").read_text()
    held_out = read_table(out / "test.parquet")
    assert list(held_out.columns) == ["prompt", "output_tokens", "model"]
    assert len(held_out) == result["test_prompts"]
    assert result["champion"] is True
    assert 0.4 < result["tau_b"] <= ATTAINABLE + 0.1
    assert bundle.manifest.metrics["tau_b"] == result["tau_b"]
    assert len(bundle.manifest.history) == 16
    assert {"step", "epoch", "train/loss", "val/tau_b"} <= set(bundle.manifest.history[0])
    checkpoints = out / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["best.ckpt", "last.ckpt"]


@pytest.mark.slow
def test_the_demo_distils_a_small_ranker_too(finished):
    out, bundle, result = finished
    small = ModelBundle.load(result["small"]["bundle"])
    assert small.path == out / "small" / "bundle"
    about = {"revision": bundle.manifest.revision, "unlabelled_prompts": 0}
    assert small.manifest.dataset["teacher"] == about
    assert small.manifest.dataset["test_digest"] == bundle.manifest.dataset["test_digest"]
    assert (small.manifest.name, result["small"]["has_int8"]) == ("logs-small", False)
    assert result["small"]["tau_b"] > result["tau_b"] - 0.1
    assert small.model_path().stat().st_size < 60_000


@pytest.mark.slow
def test_prompts_unknown_to_the_tokenizer_have_undefined_figures(
    fit, tmp_path, capsys, caplog, tiny_bert
):
    table = tmp_path / "emoji.jsonl"
    rows = ({"prompt": chr(0x1F300 + n), "output_tokens": n % 50 + 1} for n in range(300))
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert fit(str(table), "--epochs", "1", "--trainer.logger", "false") == 0
    assert f"become 1 sequences of tokens by the tokenizer of {tiny_bert}" in caplog.text
    shown = capsys.readouterr().out
    assert "tau_b                   undefined  (no interval)" in shown
    assert "tau_b, TF-IDF + ridge   undefined" in shown
    assert "registry                version 1: its tau_b is not known or undefined" in shown
    assert not (tmp_path / "out" / "checkpoints").exists()
    metrics = ModelBundle.load(tmp_path / "out" / "bundle").manifest.metrics
    assert metrics["tau_b"] is metrics["tau_b_tfidf_ridge"] is metrics["tau_b_ci"][0] is None
    assert ">undefined</td>" in (tmp_path / "out" / "ranker.html").read_text()
    bundle, data = str(tmp_path / "out" / "bundle"), ["--data", str(tmp_path / "out/test.parquet")]
    assert main(["evaluate", "--bundle", bundle, "--against", bundle, *data]) == 0
    shown = capsys.readouterr().out
    assert "tau_b                        undefined" in shown
    assert "difference                   undefined" in shown
    assert main(["evaluate", "--bundle", bundle, "--gate", *data]) == 2
    assert "has no tau_b of its test prompts" in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupted_run_ends_in_the_bits_of_a_whole_one(
    finished, quick_export, tmp_path, capsys, monkeypatch
):
    """Stopped twice; the settings are those of a config.yaml."""
    out, whole, _ = finished
    repeat = ["fit", "--config", str(out / "config.yaml"), "--out", str(tmp_path / "again")]
    repeat.append("--no-student")
    step_of = LengthRanker.training_step
    for number, stop in enumerate((7, 23)):

        def step_and_interrupt(self, batch, batch_idx, stop=stop):  # type: ignore[no-untyped-def]
            if self.global_step == stop:
                signal.raise_signal(signal.SIGINT)
            return step_of(self, batch, batch_idx)

        monkeypatch.setattr(LengthRanker, "training_step", step_and_interrupt)
        assert main([*repeat, *(["--resume"] if number else [])]) == 130
        assert not (tmp_path / "again" / "bundle").exists()
    monkeypatch.setattr(LengthRanker, "training_step", step_of)
    capsys.readouterr()
    assert main([*repeat, "--resume", "--epochs", "3"]) == 2
    assert "another trainer" in one_error_line(capsys)
    assert main([*repeat, "--resume"]) == 0
    again = ModelBundle.load(tmp_path / "again" / "bundle")
    assert again.manifest.metrics["tau_b"] == whole.manifest.metrics["tau_b"]
    for one, other in zip(whole.manifest.history, again.manifest.history, strict=True):
        assert one | {"cpu_s": 0} == other | {"cpu_s": 0}
    weights, others = (
        torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
        for folder in (out, tmp_path / "again")
    )
    for name, tensor in weights.items():
        assert tensor.numpy().tobytes() == others[name].numpy().tobytes(), name
    first, second = (
        yaml.safe_load((folder / "config.yaml").read_text()) for folder in (out, tmp_path / "again")
    )
    assert first | {"out": "", "student": False} == second | {"out": ""}
    assert first["trainer"]["gradient_clip_val"] is None


def test_trainer_options_are_lightnings_own(fit, tmp_path, tiny_bert, monkeypatch):
    """Steps, profiler and callbacks of the command line; the last step is validated."""
    given = []
    monkeypatch.setattr(command, "fit", lambda config, options: given.append(config.trainer))
    options = ["--trainer.max_steps", "3", "--trainer.callbacks+=EarlyStopping"]
    options += ["--trainer.callbacks.monitor", "val/tau_b"]
    options += ["--trainer.profiler", "SimpleProfiler", "--trainer.profiler.dirpath", str(tmp_path)]
    options += ["--trainer.profiler.filename", "profile"]
    assert fit("logs.jsonl", *options) == 0
    assert given[0]["callbacks"][0]["init_args"]["monitor"] == "val/tau_b"
    trained, _ = learnt(tiny_bert, tmp_path / "run", trainer=given[0])
    assert trained.history[-1]["step"] == 3.0
    assert trained.num_encoded == 3 * 8
    assert "run_training_batch" in (tmp_path / "fit-profile.txt").read_text()


def test_a_wrong_trainer_option_is_one_line_in_the_users_words(fit, make_card, tmp_path, capsys):
    card = make_card(RECORDS)
    for words, message in {
        ("--trainer.max_steps", "many"): "trainer.max-steps is 'many'; it takes a whole number",
        ("--trainer.precison", "16"): "no option --trainer.precison; did you mean --trainer.p",
        ("--trainer.callbacks", "Nope"): "it takes one or more words (Callback each) or Callback",
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
    out, logged, _ = finished
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
    options = ["--data.heads", '["reasoning_tokens"]', "--trainer.logger", "false", "--json"]
    assert fit(str(table), *options) == 0
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
    settings = ["--data.also", f"{tables[1]}*2", "--data.head-per-dataset", "--epochs", "3"]
    settings += ["--data.framed", "0", "--trainer.logger", "false", "--json"]
    assert fit(str(tables[0]), *settings) == 0
    first = last_json(capsys)
    second = first["heads"][str(tables[1])]
    assert Path(second["bundle"]).name == "bundle-second"
    assert min(first["tau_b"], second["tau_b"]) > 0.3
    # The encoder has seen the prompts of both sets.
    own = training_data(ModelBundle.load(second["bundle"]).manifest, None)
    assert len(unseen(own.heads[0].splits.train, own)[0]) == 0


@pytest.mark.slow
def test_a_student_without_a_teacher_trains_one_first(
    finished, quick_export, tmp_path, capsys, caplog, monkeypatch
):
    """It learns prompts without lengths too."""
    out, teacher, _ = finished
    more, student, fit_of, trained = tmp_path / "more.jsonl", tmp_path / "small", command.fit, []
    others = [record.prompt for record in generate(500, seed=6)[0]]
    more.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in others))

    def fit_or_copy(config, options):  # type: ignore[no-untyped-def]
        if options.out == student:
            return fit_of(config, options)
        shutil.copytree(teacher.path, options.out / "bundle")
        trained.append((config, options.out))

    monkeypatch.setattr(command, "fit", fit_or_copy)
    monkeypatch.setitem(RECIPES, "small", ("", small_recipe(ema_decay=None)))
    store = ["--mlruns-dir", str(tmp_path / "mlruns")]
    data = ["--data.dataset", str(out.parent / "logs.jsonl"), "--data.unlabelled", str(more)]
    settings = ["--split.val-fraction", ".15", "--epochs", "3", "--threads", "1", "--json"]
    settings += ["--trainer.logger", "false"]
    assert main(["fit", "small", "--out", str(student), *store, *data, *settings]) == 0
    result = last_json(capsys)
    ((config, place),) = trained
    assert (config.name, config.data.dataset, place) == ("best", data[1], student / "teacher")
    assert (config.data.unlabelled, config.split.val_fraction) == ((), 0.15)
    bundle = ModelBundle.load(result["bundle"])
    about = bundle.manifest.dataset["teacher"]
    assert about["revision"] == teacher.manifest.revision
    assert about["unlabelled_prompts"] == pytest.approx(350, abs=50)
    assert f"{about['unlabelled_prompts']} prompts without lengths" in caplog.text
    assert result["tau_b"] > teacher.manifest.metrics["tau_b"] - 0.1
    assert bundle.manifest.golden
    kept = read_table(student / "teacher.parquet")
    assert list(kept.columns) == ["prompt", teacher.manifest.revision]
    assert not set(kept["prompt"]) & set(read_table(student / "test.parquet")["prompt"])

    rebuild = ["export", "--run", result["mlflow_run_id"], "--out", str(tmp_path / "again")]
    assert main([*rebuild, *store, "--rebuild"]) == 0
    assert ModelBundle.load(tmp_path / "again").manifest == bundle.manifest


@pytest.mark.slow
def test_a_run_starts_from_the_encoder_of_a_bundle(finished, tmp_path, capsys):
    out, bundle, _ = finished
    config = replace(recipe("demo"), encoder=EncoderConfig(backbone=str(bundle.path)))
    options = command.FitOptions(recipe="demo", out=tmp_path, mlruns_dir=str(out.parent / "mlruns"))
    found = command._from_bundle(config, options)
    assert (found.encoder.pooling, found.optim.encoder_lr) == ("mean", 3e-3)
    logged, _ = load_scorer(Path(found.encoder.backbone))
    started, _ = load_encoder(found, 1)
    for mine, theirs in zip(
        started.backbone.parameters(), logged.backbone.parameters(), strict=True
    ):
        assert torch.equal(mine, theirs)
    run = ["fit", "demo", "--out", str(tmp_path / "out"), "--encoder.backbone", str(bundle.path)]
    assert main([*run, "--mlruns-dir", str(tmp_path / "none")]) == 2
    assert "holds no" in one_error_line(capsys)


@pytest.mark.slow
def test_a_teacher_that_does_not_fit_is_one_line(finished, tmp_path, capsys, tiny_bert):
    out, bundle, _ = finished
    small = ["fit", "small", "--mlruns-dir", str(tmp_path / "mlruns"), "--out"]
    small += [str(tmp_path / "none"), "--data.dataset", str(out.parent / "logs.jsonl")]
    small += ["--split.val-fraction", ".15", "--data.unlabelled", "[]"]
    teacher = str(bundle.path)
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
        assert main([*small, *settings]) == 2
        assert message in one_error_line(capsys)
    assert not (tmp_path / "none").exists()


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
        (RECORDS[:1], {}, [], "only 1 distinct"),
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


def test_an_unknown_recipe_or_data_set_lists_known_ones(fit, tmp_path, capsys):
    assert main(["fit", "nothing", "--out", "x"]) == 2
    assert "use one of demo" in one_error_line(capsys)
    assert fit("nothing") == 2
    assert "alpaca-vicuna7b" in one_error_line(capsys)
    assert fit("alpaca-vicuna7b", "--data-dir", str(tmp_path)) == 2
    assert "lacks alpaca-vicuna7b/" in one_error_line(capsys)


@pytest.mark.parametrize("blocked", ["mlruns", "out"])
def test_a_folder_that_cannot_be_written_is_one_line(fit, make_card, tmp_path, capsys, blocked):
    (tmp_path / blocked).write_text("a file where a folder should be")
    assert fit(make_card(RECORDS)) == 2
    assert "cannot be written" in one_error_line(capsys)


def test_the_better_of_two_rankers_is_served_next(monkeypatch, capsys):
    monkeypatch.setattr(command, "_print_result", lambda result: print(result["bundle"]))
    for tau_b, small, best in ((0.5, 0.6, "small"), (0.6, 0.5, "large"), (None, 0.1, "small")):
        result = {"bundle": "large", "tau_b": tau_b, "small": {"bundle": "small", "tau_b": small}}
        monkeypatch.setattr(command, "fit", lambda config, options, result=result: result)
        assert main(["fit", "demo", "--out", "run"]) == 0
        first, _, title, second, after = capsys.readouterr().out.splitlines()
        assert (first, second) == ("large", "small")
        assert title.startswith("small ranker")
        assert after.endswith(f"serve --bundle {best}")


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
