"""`loadtest` ends well, whatever ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from scoring_service.__main__ import main
from scoring_service.bench import load


def test_a_load_test_that_nothing_answers_counts_failures_and_fails(capsys):
    options = ["--rate", "50", "--seconds", "0.2", "--json"]
    assert main(["loadtest", "--target", "127.0.0.1:1", *options]) == 2
    output = capsys.readouterr()
    assert sum(json.loads(output.out)["failed"].values()) == 10
    assert "127.0.0.1:1 answered none of 10 requests" in output.err


def test_an_interrupted_load_test_tells_what_it_sent(server, capsys, monkeypatch):
    paced = load._paced

    def interrupting(*arguments: object) -> Iterator[bytes]:
        for number, request in enumerate(paced(*arguments)):
            if number == 5:  # By now the handler stands.
                os.kill(os.getpid(), signal.SIGINT)
            yield request

    monkeypatch.setattr(load, "_paced", interrupting)
    options = ["--rate", "100", "--seconds", "60", "--timeout-s", "60", "--json"]
    assert main(["loadtest", "--target", server.target, *options]) == 130
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert output.err == "interrupted\n"
    assert 5 <= result["sent"] <= 7
    assert result["answered"] + result["refused"] + sum(result["failed"].values()) == result["sent"]


def test_a_process_that_ends_during_the_load_test_costs_its_memory_figure_only(
    server, capsys, monkeypatch
):
    process = subprocess.Popen(["sleep", "600"])
    paced = load._paced

    def killing(*arguments: object) -> Iterator[bytes]:
        process.kill()
        process.wait()
        yield from paced(*arguments)

    monkeypatch.setattr(load, "_paced", killing)
    options = ["--rate", "20", "--seconds", "0.5", "--timeout-s", "60", "--pid", str(process.pid)]
    assert main(["loadtest", "--target", server.target, *options]) == 2
    output = capsys.readouterr()
    assert re.search(r"^answered +10 +p50 \d+\.\d ms, p90", output.out, re.MULTILINE)
    assert "memory" not in output.out
    assert f"process {process.pid} ended" in output.err


@pytest.mark.parametrize(
    "option", ["--rate=0", "--seconds=-1", "--prompts=/nonexistent", "--pid=999999999"]
)
def test_a_wrong_load_test_is_one_clear_line(capsys, option):
    assert main(["loadtest", option]) == 2
    assert capsys.readouterr().err.count("\n") == 1
