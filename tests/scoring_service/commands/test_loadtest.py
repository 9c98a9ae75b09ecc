"""A load test accounts for every request; one that could send nothing is refused."""

import json
import os
import re
import signal

from scoring_service.__main__ import main


def test_failures_are_counted_by_name_beside_the_answers(server, capsys, monkeypatch):
    prompts = ["yes", "", "long essay"] * 5
    monkeypatch.setattr("scoring_service.commands.loadtest._random_prompts", lambda _: prompts)
    options = ["--rate", "10000", "--timeout-s", "60"]
    assert main(["loadtest", "--target", server.target, "--json", *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["sent"], result["answered"]) == (15, 10)
    assert (result["refused"], result["failed"]) == (0, {"InvalidPrompt": 5})
    assert result["answered_ms"]["p50"] <= result["answered_ms"]["p99"]


def test_a_load_test_that_nothing_answers_counts_failures(capsys):
    options = ["--rate", "50", "--seconds", "0.2", "--json"]
    assert main(["loadtest", "--target", "127.0.0.1:1", *options]) == 2
    output = capsys.readouterr()
    assert sum(json.loads(output.out)["failed"].values()) == 10
    assert "127.0.0.1:1 answered none of 10 requests" in output.err


def test_an_interrupted_load_test_tells_what_it_sent(server, capsys, monkeypatch):
    asked, real = [], server.service.begin

    def interrupting(*call):
        asked.append(call)
        if len(asked) == 5:  # By now the handler stands.
            os.kill(os.getpid(), signal.SIGINT)
        return real(*call)

    monkeypatch.setattr(server.service, "begin", interrupting)
    options = ["--rate", "100", "--seconds", "60", "--timeout-s", "60"]
    assert main(["loadtest", "--target", server.target, *options]) == 130
    output = capsys.readouterr()
    assert output.err == "interrupted\n"
    assert re.search(
        rf"^sent +{len(asked)} .*^answered +{len(asked)} +p50", output.out, re.M | re.S
    )
