"""The load test's command, and that what is deployed fits what is built."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

import scoring_service
from scoring_service.__main__ import _parser, main
from scoring_service.config import ServerConfig
from scoring_service.metrics import Metrics
from scoring_service.service import ScoringService

DEPLOY = Path(scoring_service.__file__).parent / "deploy"


def test_a_load_test_accounts_for_every_request(server, capsys, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("yes\n\nlong essay\n")
    options = ["--rate", "200", "--seconds", "0.5", "--timeout-s", "5", "--pid", str(os.getpid())]
    for extra in ([], ["--prompts", str(prompts)]):
        assert main(["loadtest", "--target", server.target, "--json", *options, *extra]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["sent"] == 100
        accounted = result["answered"] + result["refused"] + sum(result["failed"].values())
        assert accounted == 100
        assert result["answered_ms"]["p50"] <= result["answered_ms"]["p99"]
        assert "rss_growth_fraction" in result


def test_a_load_test_of_nothing_counts_failures(capsys):
    options = ["--rate", "50", "--seconds", "0.2", "--json"]
    assert main(["loadtest", "--target", "127.0.0.1:1", *options]) == 0
    assert sum(json.loads(capsys.readouterr().out)["failed"].values()) == 10


@pytest.mark.parametrize("option", ["--rate=0", "--seconds=-1", "--prompts=/nonexistent"])
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
    _parser().parse_args(shlex.split(line))
    container = (DEPLOY / "Containerfile").read_text()
    entry = json.loads(container.partition("ENTRYPOINT ")[2].replace("\\\n", ""))
    _parser().parse_args(entry[3:])


def test_logs_can_be_json(capsys, tiny_bundle):
    arguments = ["serve", "--bundle", str(tiny_bundle.path), "--log-format", "xml"]
    assert main(arguments) == 2
    assert "text, json" in capsys.readouterr().err
