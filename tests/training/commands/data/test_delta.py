"""`delta`: how far the answers to one prompt differ in length."""

import json

import pandas as pd
import pytest

from training.__main__ import main


@pytest.fixture
def table(tmp_path):
    """Three prompts with answers that vary by .1, .2 and .5, and a prompt with one answer."""
    lengths = {"a": [90, 100, 95], "b": [80, 100, 100], "c": [100, 200, 150], "once": [7]}
    rows = [{"prompt": p, "output_tokens": n} for p, many in lengths.items() for n in many]
    path = tmp_path / "lengths.jsonl"
    pd.DataFrame(rows).to_json(path, orient="records", lines=True)
    return str(path)


def test_delta_is_what_a_part_of_the_prompts_stays_within(table, capsys):
    assert main(["delta", "--data", table, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["delta"] == pytest.approx(0.2)
    assert result["variance"] == pytest.approx(100 / 80 - 1)
    assert (result["prompts"], result["answers_per_prompt"]) == (3, 3)
    assert main(["delta", "--data", table]) == 0
    out = capsys.readouterr().out
    assert "variance           0.250 of half of the prompts (paper: .2" in out
    assert "delta              0.200, the same limit" in out


def test_answers_that_were_given_once_tell_nothing(tmp_path, capsys):
    path = tmp_path / "logs.csv"
    path.write_text("prompt,output_tokens\na,1\nb,2\n")
    assert main(["delta", "--data", str(path)]) == 2
    assert "collect them with --samples 10" in capsys.readouterr().err
