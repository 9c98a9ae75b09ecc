"""What is deployed fits what is built."""

import json
import re
import shlex
from pathlib import Path

import scoring_service
from lengthwise.command_line.options import parse
from scoring_service.commands.serve import serve
from scoring_service.server.metrics import Metrics
from scoring_service.service.config import ServerConfig
from scoring_service.service.scoring import ScoringService

DEPLOY = Path(scoring_service.__file__).parent / "deploy"


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
