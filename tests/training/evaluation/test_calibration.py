"""Calibrated lengths: coverage holds on rows the curves have never seen, for any target model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from scoring_service.bundle import ModelBundle
from scoring_service.calibration import LengthCurve
from scoring_service.errors import DataError
from training.__main__ import main
from training.data.labels import LabelledPrompt
from training.evaluation.calibration import QUANTILES, calibrate, coverage, per_response


def model_rows(count: int, seed: int, *, slope: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Scores on an arbitrary scale and lengths whose spread grows with the score."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 3, count)
    logs = 4 + slope * np.tanh(scores / 3) + rng.normal(0, 0.3 + 0.2 * (scores > 0), count)
    return scores, np.maximum(1, np.rint(np.exp(logs)))


@pytest.mark.parametrize("slope", [1.0, -0.2, 0.0])
def test_coverage_is_within_three_points_on_new_rows(slope: float) -> None:
    # Even where the score says nothing, or the wrong thing, about this model.
    entry = calibrate(*model_rows(3000, 0, slope=slope))
    shares = coverage(entry, *model_rows(20_000, 1, slope=slope))
    for quantile in QUANTILES:
        assert shares[str(quantile)] == pytest.approx(quantile, abs=0.03)


def test_two_hundred_rows_cover_well_on_average() -> None:
    errors = []
    for seed in range(20):
        shares = coverage(calibrate(*model_rows(200, seed)), *model_rows(4000, 99))
        errors.append([shares[str(q)] - q for q in QUANTILES])
    assert np.abs(np.mean(errors, axis=0)).max() < 0.03


def test_curves_rise_with_the_score_and_never_cross() -> None:
    curve = LengthCurve.parse("m", calibrate(*model_rows(150, 3)))
    rows = np.array([curve.quantiles[q] for q in QUANTILES])
    assert (np.diff(rows, axis=0) >= 0).all()
    assert np.all(np.diff(curve.expected) >= 0)
    assert curve.at(-1e9).expected_tokens == curve.expected[0]


def test_quantiles_are_not_spread_too_far_apart() -> None:
    errors = []
    for seed in range(30):
        shares = coverage(calibrate(*model_rows(500, seed)), *model_rows(2000, 1000 + seed))
        errors.append([shares[str(q)] - q for q in QUANTILES])
    low, high = np.mean(errors, axis=0)[[0, -1]]
    assert abs(high - low) / 2 < 0.007  # .012 with the misses of curves from half of the rows.


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(DataError, match="49 rows to calibrate with"):
        calibrate(*model_rows(49, 0))


def test_each_response_of_a_prompt_is_a_row() -> None:
    prompts = [
        LabelledPrompt(prompt="a", model="", lengths=(3, 5)),
        LabelledPrompt(prompt="b", model="", lengths=(7,)),
    ]
    scores, lengths = per_response(np.array([0.5, 2.0]), prompts)
    assert scores.tolist() == [0.5, 0.5, 2.0]
    assert lengths.tolist() == [3, 5, 7]


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


def test_recalibration_adds_a_model_and_leaves_the_scores_alone(
    tiny_bundle: ModelBundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_table(tmp_path / "logs.jsonl", 200)
    columns = ["--data", str(table), "--prompt-column", "text", "--length-column", "tokens"]
    out = tmp_path / "bundle"
    assert (
        main(
            ["recalibrate", "--bundle", str(tiny_bundle.path), "--out", str(out), "--json",
             "--target-model", "other", *columns]
        )
        == 0
    )  # fmt: skip
    entry = json.loads(capsys.readouterr().out)
    assert entry["rows"] == 200
    unnamed = ["--bundle", str(out), "--target-model", "", *columns]
    assert main(["recalibrate", *unnamed]) == 2
    assert "target_model is empty" in capsys.readouterr().err
    written = ModelBundle.load(out)
    assert set(written.manifest.calibration) == {"tiny-llm", "other"}
    assert written.manifest.revision == tiny_bundle.manifest.revision

    assert (
        main(["evaluate", "--bundle", str(out), "--target-model", "other", "--json", *columns]) == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert result["n"] == 200
    assert result["tau_b"] > 0.5
    assert result["ceiling"] is None
    assert result["baselines"]["tfidf_ridge"] is None
    assert result["coverage"]["0.5"] == pytest.approx(0.5, abs=0.1)
    assert result["tau_b_ci"][0] < result["tau_b"] < result["tau_b_ci"][1]
    assert 0.5 < result["pair_accuracy"] <= result["pair_accuracy_delta"] <= 1


def test_without_json_the_figures_are_a_table(
    tiny_bundle: ModelBundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = ["--data", str(write_table(tmp_path / "logs.jsonl", 60)), "--prompt-column", "text"]
    bundle = ["--bundle", str(tiny_bundle.path), *table, "--length-column", "tokens"]
    assert main(["evaluate", *bundle]) == 0
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["prompts"] == "60"
    assert 0 < float(rows["tau_b"]) < 1
    out = ["--target-model", "other", "--out", str(tmp_path / "bundle")]
    assert main(["recalibrate", *bundle, *out]) == 0
    assert capsys.readouterr().out == f"{out[-1]}: other calibrated on 60 responses\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--length-column", "length"], "no column 'length'"),
        (["--length-column", "tokens", "--target-model", "gpt"], "no calibration for 'gpt'"),
        (["--length-column", "tokens", "--model-column", "llm", "--model", "x"], "not 'x'"),
    ],
)
def test_evaluate_refuses_what_it_cannot_measure(
    tiny_bundle: ModelBundle,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    table = write_table(tmp_path / "logs.jsonl", 20)
    bundle = ["--bundle", str(tiny_bundle.path), "--data", str(table), "--prompt-column", "text"]
    assert main(["evaluate", *bundle, *options]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (["a,7", "b,7", "c,7"], "all 3 lengths are 7"),
        # Alike up to where the model cuts them.
        (["poem " * 32 + f"{n},{n}" for n in (7, 8, 9)], "all 3 scores are 0.9"),
    ],
)
def test_equal_lengths_or_scores_are_told_and_not_ranked(
    rows: list[str],
    why: str,
    tiny_bundle: ModelBundle,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "logs.csv"
    path.write_text("\n".join(["prompt,output_tokens", *rows]) + "\n")
    assert main(["evaluate", "--bundle", str(tiny_bundle.path), "--data", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tau_b"] is None
    assert f"tau_b is undefined: {why}" in caplog.text


@pytest.mark.parametrize(("count", "warned"), [(5, True), (19, True), (20, False)])
def test_few_prompts_are_warned_of(
    count: int,
    warned: bool,
    tiny_bundle: ModelBundle,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = ["--data", str(write_table(tmp_path / "logs.jsonl", count))]
    columns = ["--prompt-column", "text", "--length-column", "tokens"]
    assert main(["evaluate", "--bundle", str(tiny_bundle.path), *data, *columns]) == 0
    assert (f"{count} prompts tell little" in caplog.text) == warned
    caplog.clear()
    bundles = [str(tiny_bundle.path)] * 2
    assert main(["compare", *bundles, *data, *columns]) == 0
    assert (f"{count} prompts tell little" in caplog.text) == warned


def test_repeated_prompts_are_samples_and_give_the_ceiling(
    tiny_bundle: ModelBundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "logs.csv"
    rows = ["yes,3", "yes,4", "essay,90", "essay,80", "poem,40", "poem,45"]
    path.write_text("\n".join(["prompt,output_tokens", *rows]) + "\n")
    assert main(["evaluate", "--bundle", str(tiny_bundle.path), "--data", str(path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["n"] == 3
    assert result["ceiling"] == pytest.approx(1.0)
    assert result["num_repeated"] == 3
    assert result["tau_b_geometric_mean"] == pytest.approx(result["tau_b"])
    assert result["tau_b_over_ceiling"] == pytest.approx(1.0)
