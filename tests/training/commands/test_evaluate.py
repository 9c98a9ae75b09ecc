"""`evaluate`: figures of a bundle on any table, or a reason why there are none."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from training.__main__ import main

COLUMNS = ["--prompt-column", "text", "--length-column", "tokens"]


def write_table(path: Path, count: int) -> Path:
    words = ("yes", "no", "short", "poem", "long", "essay")
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        for number in range(count):
            chosen = rng.integers(0, 6, size=3)
            prompt = " ".join([*(words[n] for n in chosen), str(number)])
            length = int(50 * np.exp(chosen.sum() / 5 + rng.normal(0, 0.2)))
            file.write(json.dumps({"text": prompt, "tokens": length, "llm": "other"}) + "\n")
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
    [
        (["a,7", "b,7", "c,7"], "all 3 lengths are 7"),
        # Alike but in the middle, which the model cuts.
        ([f"{'poem ' * 99}{n}{' poem' * 99},{n}" for n in (7, 8, 9)], "all 3 scores are 0.9"),
    ],
)
def test_equal_lengths_or_scores_are_told_and_not_ranked(rows, why, evaluate, capsys, caplog):
    assert evaluate(rows, "--json") == 0
    assert json.loads(capsys.readouterr().out)["tau_b"] is None
    assert f"tau_b is undefined: {why}" in caplog.text


@pytest.mark.parametrize(("count", "warned"), [(5, True), (19, True), (20, False)])
def test_few_prompts_are_warned_of(count, warned, evaluate, tiny_bundle, tmp_path, caplog):
    assert evaluate(count, *COLUMNS) == 0
    assert (f"{count} prompts tell little" in caplog.text) == warned
    caplog.clear()
    bundles = [str(tiny_bundle.path)] * 2
    assert main(["compare", *bundles, "--data", str(tmp_path / "logs"), *COLUMNS]) == 0
    assert (f"{count} prompts tell little" in caplog.text) == warned


def test_repeated_prompts_are_samples_and_give_the_ceiling(evaluate, capsys):
    rows = ["yes,3", "yes,4", "essay,90", "essay,80", "poem,40", "poem,45"]
    assert evaluate(rows, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["n"] == 3
    assert result["ceiling"] == pytest.approx(1.0)
