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
