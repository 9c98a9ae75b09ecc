"""The `fetch` command: what it builds, leaves out and prints."""

import json

import pytest
from datasets import Dataset

from training.__main__ import main


def test_sets_are_built_with_their_licences_and_found_again(git_host, tmp_path, capsys):
    place = ["--out", str(tmp_path), "--mirror", git_host]
    assert main(["fetch", "arena-hard", "gpteacher-gpt4", *place, "--json"]) == 0
    sets = json.loads(capsys.readouterr().out)["sets"]
    assert [each["id"] for each in sets] == ["arena-hard", "gpteacher-gpt4"]
    assert main(["fetch", "alpaca-eval", "gpteacher-gpt4", *place]) == 0
    out = capsys.readouterr().out
    assert "alpaca-eval          built, 2 rows, licence repository Apache-2.0; data CC BY-NC" in out
    assert "gpteacher-gpt4       was there, 4 rows" in out
    assert f"next: python -m training fit demo --data-dir {tmp_path} --data.dataset alpaca" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "ids is missing"),
        (["smollm2-instruct"], "cannot be read by this version"),
        (["gpteacher-gpt4", "--mirror", "file:///nowhere"], "check the network"),
        (["arena-hard", "gpteacher-gpt4", "--push-to-hub", "o/r"], "for several sets; give one id"),
    ],
)
def test_what_cannot_be_fetched_is_one_line(arguments, message, tmp_path, capsys):
    assert main(["fetch", *arguments, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("error: ")
    assert message in error


def test_a_built_set_is_pushed_by_name(git_host, tmp_path, capsys, monkeypatch):
    def push(records: Dataset, about: str, name: str) -> str:
        assert (len(records), about[:16]) == (4, "# gpteacher-gpt4")
        return f"hf:{name}:train"

    monkeypatch.setattr("training.commands.data.fetch.push_to_hub", push)
    place = ["--out", str(tmp_path), "--mirror", git_host, "--push-to-hub", "me/lengths"]
    assert main(["fetch", "gpteacher-gpt4", *place]) == 0
    assert "--data.dataset hf:me/lengths:train" in capsys.readouterr().out
