"""`evaluate`: figures of a bundle on any table, or a reason why there are none."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from lengthwise.errors import DataError
from tests.training.commands.conftest import TEST, draw_prompts
from tests.training.prompts import PromptResponse
from training.__main__ import main
from training.commands.evaluate import judge

COLUMNS = ["--prompt-column", "text", "--length-column", "tokens"]
CUT_ALIKE = [f"{'poem ' * 99}{n}{' poem' * 99},{n}" for n in (7, 8, 9)]
"""Prompts that differ in the middle only, which the model cuts, and their lengths."""


def write_table(path: Path, count: int) -> Path:
    rows = ((record.prompt, record.output_tokens, "other") for record in draw_prompts(count))
    frame = pd.DataFrame(rows, columns=["text", "tokens", "llm"])
    frame.to_json(path, orient="records", lines=True)
    return path


@pytest.fixture
def evaluate(tiny_bundle, tmp_path):
    """Runs the command on so many prompts, or on these prompts and lengths; its status."""

    def run(rows: int | list[str], *options: str) -> int:
        path = tmp_path / "logs"
        if isinstance(rows, int):
            write_table(path, rows)
        else:
            path.write_text("\n".join(["prompt,output_tokens", *rows]))
        return main(["evaluate", "--bundle", str(tiny_bundle.path), "--data", str(path), *options])

    return run


def test_without_json_the_figures_are_a_table(evaluate, tiny_bundle, tmp_path, capsys):
    assert evaluate(60, *COLUMNS) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == f"next: python -m scoring_service serve --bundle {tiny_bundle.path}"
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in lines)
    assert rows["prompts"] == "60"
    assert 0 < float(rows["tau_b"]) < 1
    bundle = ["--bundle", str(tiny_bundle.path), "--data", str(tmp_path / "logs"), *COLUMNS]
    out = ["--target-model", "other", "--out", str(tmp_path / "bundle")]
    assert main(["recalibrate", *bundle, *out]) == 0
    assert capsys.readouterr().out == f"{out[-1]}: other calibrated on 60 responses\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--length-column", "length"], "no column 'length'"),
        (["--length-column", "tokens", "--target-model", "gpt"], "no calibration for 'gpt'"),
        (
            ["--length-column", "tokens", "--model-column", "llm", "--model", "x"],
            "a model other than x",
        ),
    ],
)
def test_evaluate_refuses_what_it_cannot_measure(evaluate, capsys, options, message):
    assert evaluate(20, "--prompt-column", "text", *options) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("rows", "why"),
    [(["a,7", "b,7", "c,7"], "all 3 lengths are 7"), (CUT_ALIKE, "all 3 scores are 0.9")],
)
def test_equal_lengths_or_scores_are_told_and_not_ranked(rows, why, evaluate, capsys, caplog):
    assert evaluate(rows, "--json") == 0
    assert json.loads(capsys.readouterr().out)["tau_b"] is None
    assert f"tau_b is undefined: {why}" in caplog.text


def test_ties_of_scores_are_told_where_they_raise_the_figure(evaluate, caplog):
    assert evaluate([*CUT_ALIKE, "yes,3"]) == 0
    assert "with ties by chance tau_b is 0.5" in caplog.text


@pytest.mark.parametrize(("count", "warned"), [(19, True), (20, False)])
def test_few_prompts_are_warned_of(count, warned, evaluate, caplog):
    assert evaluate(count, *COLUMNS) == 0
    assert (f"{count} prompts tell little" in caplog.text) == warned


def test_repeated_prompts_are_samples_and_give_the_ceiling(evaluate, capsys):
    rows = ["yes,3", "yes,4", "essay,90", "essay,80", "poem,40", "poem,45"]
    assert evaluate(rows, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["n"] == 3
    assert result["ceiling"] == pytest.approx(1.0)


def test_a_second_bundle_gives_a_paired_difference(make_bundle, register, training, data):
    good, bad = make_bundle(0), make_bundle(3)
    register("compared", bad)
    rankers = ["--bundle", good.path, "--against", "compared/1"]
    status, result = training("evaluate", *rankers, "--data", data)
    found = result["against"]
    low, high = found["difference_ci"]
    assert (status, found["revision"]) == (0, bad.manifest.revision)
    assert 0 < low < found["difference"] < high
    assert found["difference"] == pytest.approx(result["tau_b"] - found["tau_b"])
    _, same = training("evaluate", "--bundle", bad.path, "--against", bad.path, "--data", data)
    assert same["against"]["difference_ci"] == [0, 0]
    assert same["against"]["order_tau_b"] == pytest.approx(1)


def test_prompts_that_a_ranker_has_learnt_from_are_dropped(
    make_bundle, learnt, training, tiny_bundle, tmp_path
):
    trained, splits = learnt(900)
    bundle, log = make_bundle(0, **trained).path, tmp_path / "log.parquet"
    strangers = [replace(record, prompt=f"again {record.prompt}") for record in TEST]
    for part, num_seen in (splits.train.take(30), 30), (splits.test, 0):
        rows = [PromptResponse(prompt=p["prompt"], output_tokens=p["lengths"][0]) for p in part]
        pd.DataFrame([*strangers, *rows]).to_parquet(log)
        _, result = training("evaluate", "--bundle", bundle, "--data", log)
        assert result["num_seen_in_training"] == num_seen
        against = ["--bundle", tiny_bundle.path, "--against", bundle]
        _, result = training("evaluate", *against, "--data", log)
        assert (result["num_seen_in_training"], result["n"]) == (None, len(rows) - num_seen + 120)


def test_drift_in_the_newest_rows_is_below_the_gate(make_bundle, training, tmp_path):
    bundle = make_bundle(0, metrics={"tau_b": 0.65, "tau_b_ci": [0.5, 0.7]})
    log = tmp_path / "log.parquet"
    drifted = [replace(r, prompt=f"{r.prompt} now") for r in draw_prompts(100, drifted=True)]
    pd.DataFrame(draw_prompts(300) + drifted).to_parquet(log)
    words = ["evaluate", "--bundle", bundle.path, "--data", log, "--gate", "--newest"]
    status, result = training(*words, "100")
    assert (status, result["n"], result["gate"]["is_below"]) == (1, 100, True)
    assert (result["gate"]["tau_b"], result["gate"]["certain"]) == (0.5, True)
    assert training(*words, "19") == (2, "error: newest is 19; use a whole number, 20 or more")
    pd.DataFrame(draw_prompts(300)).to_parquet(log)
    status, result = training(*words, "100")
    assert (status, result["gate"]["is_below"], set(result["coverage"])) == (
        0,
        False,
        {"0.5", "0.9"},
    )


@pytest.mark.parametrize(
    ("interval", "gate", "is_below", "certain"),
    [
        ([0.4, 0.6], 0.4, False, True),
        ([0.4, 0.6], 0.5, False, False),
        ([0.4, 0.6], 0.6, True, False),
        ([0.4, 0.6], 0.61, True, True),
    ],
)
def test_a_verdict_is_certain_if_the_whole_interval_agrees(interval, gate, is_below, certain):
    found = judge({"tau_b": 0.5, "tau_b_ci": interval}, gate)
    assert (found["is_below"], found["certain"]) == (is_below, certain)
    with pytest.raises(DataError, match="undefined"):
        judge({"tau_b": None, "tau_b_ci": [None, None]}, gate)
