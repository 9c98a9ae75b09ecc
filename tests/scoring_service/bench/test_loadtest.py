"""The load test's command, and that what is deployed fits what is built."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import scoring_service
from scoring_service.__main__ import main
from scoring_service.bench import load
from scoring_service.command_line import parse
from scoring_service.commands.serve import serve
from scoring_service.server.metrics import Metrics
from scoring_service.service.config import ServerConfig
from scoring_service.service.scoring import ScoringService

DEPLOY = Path(scoring_service.__file__).parent / "deploy"


def test_a_load_test_accounts_for_every_request(server, capsys, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("yes\n\nlong essay\n")
    options = ["--rate", "200", "--seconds", "0.5", "--timeout-s", "60", "--pid", str(os.getpid())]
    for extra in ([], ["--prompts", str(prompts)]):
        assert main(["loadtest", "--target", server.target, "--json", *options, *extra]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["sent"] == 100
        accounted = result["answered"] + result["refused"] + sum(result["failed"].values())
        assert accounted == 100
        assert result["answered_ms"]["p50"] <= result["answered_ms"]["p99"]
        assert "rss_growth_fraction" in result


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


def test_the_dashboard_shows_only_metrics_that_exist(tiny_model):
    text = (DEPLOY / "grafana-dashboard.json").read_text()
    json.loads(text)
    service = ScoringService(tiny_model, ServerConfig())
    known = set()
    for family in Metrics(service).registry.collect():
        known |= {family.name, f"{family.name}_total", f"{family.name}_bucket"}
    shown = set(re.findall(r"scoring_[a-z_]+", text))
    assert len(shown) > 10
    assert shown <= known


def test_the_deployed_commands_are_understood():
    unit = (DEPLOY / "lengthwise-scoring.service").read_text()
    (line,) = re.findall(r"^ExecStart=\S+ -m scoring_service (.*)$", unit, re.MULTILINE)
    command, *arguments = shlex.split(line)
    assert command == "serve"
    parse("serve", serve, arguments)
    container = (DEPLOY / "Containerfile").read_text()
    entry = json.loads(container.partition("ENTRYPOINT ")[2].replace("\\\n", ""))
    assert entry[3] == "serve"
    parse("serve", serve, entry[4:])


def test_logs_can_be_json(capsys, tiny_bundle):
    arguments = ["serve", "--bundle", str(tiny_bundle.path), "--log-format", "xml"]
    assert main(arguments) == 2
    assert "text, json" in capsys.readouterr().err
