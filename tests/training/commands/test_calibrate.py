"""`calibrate`: a file for routers, and one line for bad input."""

import json

import pytest

from tests.training.prefill.test_cost import PEAK, table
from training.__main__ import main


def test_the_file_turns_lengths_into_the_measured_seconds(mlruns, tmp_path, capsys):
    source, out = tmp_path / "prefill.csv", tmp_path / "cost.json"
    frame = table().assign(peak_flop_per_s=PEAK, model="llama", device="v100")
    frame.to_csv(source, index=False)
    run = ["calibrate", "--samples", str(source), "--out", str(out), "--json"]
    assert main([*run, "--mlruns-dir", str(mlruns)]) == 0
    printed = json.loads(capsys.readouterr().out)
    cost = json.loads(out.read_text())
    assert {key: printed[key] for key in cost} == cost
    for row in frame[frame["batch_size"] == 1].itertuples():
        flop = cost["alpha"] * row.prompt_tokens**2 + cost["beta"] * row.prompt_tokens
        assert flop / cost["peak_flop_per_s"] == pytest.approx(row.latency_s, rel=1e-3)
    assert (cost["model"], cost["device"], cost["num_samples"]) == ("llama", "v100", 14)
    assert (cost["min_prompt_tokens"], cost["max_prompt_tokens"]) == (128, 8192)
    assert len(cost["source"][0]["sha256"]) == 64
    assert main([*run[:-1], "--mlruns-dir", str(mlruns)]) == 0
    assert "R^2 1.0000" in capsys.readouterr().out


def test_a_place_that_cannot_be_written_is_one_line(mlruns, tmp_path, capsys):
    source = tmp_path / "prefill.csv"
    table().assign(peak_flop_per_s=PEAK).to_csv(source, index=False)
    run = ["calibrate", "--samples", str(source), "--mlruns-dir", str(mlruns)]
    for place in (tmp_path, source / "cost.json"):
        assert main([*run, "--out", str(place)]) == 2
        assert "cannot be written" in capsys.readouterr().err


def test_a_table_without_a_column_is_one_line(tmp_path, capsys):
    source = tmp_path / "prefill.csv"
    table().to_csv(source, index=False)
    assert main(["calibrate", "--samples", str(source)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no column 'peak_flop_per_s'; the columns are: " in line


def test_a_cost_scaled_to_another_model_has_its_error_measured(mlruns, tmp_path, capsys):
    paths = [tmp_path / name for name in ("a.csv", "b.csv", "a.json", "b.json")]
    (measured, other), (fitted, scaled) = paths[:2], paths[2:]
    for path, beta in ((measured, 1.3e10), (other, 2.6e10)):
        table(beta=beta).assign(peak_flop_per_s=PEAK, model="a", device="d").to_csv(path)
    store = ["--mlruns-dir", str(mlruns), "--out"]
    assert main(["calibrate", "--samples", str(measured), *store, str(fitted)]) == 0
    run = ["calibrate", "--from-cost", str(fitted), "--for-model", "b", "--parameter-ratio", "2"]
    assert main([*run, "--samples", str(other), *store, str(scaled)]) == 0
    before, after = (json.loads(path.read_text()) for path in (fitted, scaled))
    assert (after["model"], after["alpha"]) == ("b", before["alpha"])
    assert after["beta"] == 2 * before["beta"]
    assert after["worst_held_out_error"] < 0.01
    assert [one["path"] for one in after["source"]] == [str(fitted), str(measured)]
    assert main([*run, *store, str(scaled), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["held_out_error"] is None
    for words, said in ((["--from-cost", str(other)], "is no prefill"), ([], "nothing to fit")):
        assert main(["calibrate", *words]) == 2
        assert said in capsys.readouterr().err
