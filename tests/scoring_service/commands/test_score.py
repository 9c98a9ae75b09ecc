"""`score` prints one line per prompt, or one JSON object."""

import json

import pytest

from scoring_service.__main__ import main


def test_the_score_command_prints_one_json_object(server, capsys, monkeypatch):
    for name, value in (("http_proxy", "http://127.0.0.1:9"), ("no_proxy", "")):
        monkeypatch.setenv(name, value)
    prompts = ["yes", "long essay 😀 \U0002f800"]
    assert main(["score", "--target", server.target, "--json", *prompts]) == 0
    rows = json.loads(capsys.readouterr().out)["scores"]
    assert [row["prompt"] for row in rows] == prompts
    assert rows[0]["value"] < rows[1]["value"]


def test_a_prompt_without_a_score_is_named_and_costs_no_others(server, capsys):
    arguments = ["score", "--target", server.target, "--timeout-s", "60"]
    assert main([*arguments, "yes", "", "long essay"]) == 2
    output = capsys.readouterr()
    columns = [line.split("\t") for line in output.out.splitlines()]
    assert [prompt for _, prompt in columns] == ["yes", "", "long essay"]
    assert float(columns[0][0]) < float(columns[2][0])
    assert columns[1][0] == "-"
    assert "prompt 2 of 3" in output.err
    assert main([*arguments, "--json", "yes", ""]) == 2
    good, bad = json.loads(capsys.readouterr().out)["scores"]
    assert good["value"] == pytest.approx(float(columns[0][0]), abs=1e-4)
    assert "empty" in bad["error"]


def test_the_score_command_prints_the_tokens_of_a_target_model(server, capsys, fails):
    arguments = ["score", "--target", server.target, "--timeout-s", "60", "--target-model"]
    assert main([*arguments, "tiny-llm", "no", "long essay"]) == 0
    columns = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [prompt for _, _, prompt in columns] == ["no", "long essay"]
    assert 0 < int(columns[0][1]) < int(columns[1][1])
    assert "gpt-9" in fails(*arguments, "gpt-9", "no", "long essay")
