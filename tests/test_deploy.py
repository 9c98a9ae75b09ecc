"""What is deployed fits what is built: units, alert rules, dashboards and pods."""

import re
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from lengthwise.command_line.options import parse
from scheduler_adapters.commands import serve_vllm
from scheduler_adapters.engines.engine_metrics import EngineMetrics
from scheduler_adapters.engines.vllm_v1.request_scores import ScoreMetrics
from scheduler_adapters.timeline.token_clock import TokenClock
from scoring_service.commands.serve import serve
from scoring_service.ranker.model import RankerModel
from scoring_service.server.metrics import Metrics
from scoring_service.service.config import ServerConfig
from scoring_service.service.scoring import ScoringService

ROOT = Path(__file__).resolve().parents[1]
SERVICE, ENGINE = ROOT / "scoring_service/deploy", ROOT / "scheduler_adapters/engines/deploy"
FOLDERS = (SERVICE, ENGINE)
FILES = {"grafana-dashboard.json": 10, "alerts.yaml": 5}
"""File -> least number of metrics in it."""
WORKFLOWS = [str(path) for path in (ROOT / ".github/workflows").iterdir()]
UNITS = [SERVICE / "lengthwise-scoring.service", ENGINE / "lengthwise-vllm.service"]


def needs(tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed here (Debian: systemd, prometheus)")


def metrics_of(*registries: CollectorRegistry) -> set[str]:
    families = [family for registry in registries for family in registry.collect()]
    ends = ("", "_total", "_bucket", "_count", "_sum", "_info")
    return {family.name + end for family in families for end in ends}


def test_dashboards_and_rules_name_metrics_that_exist(tiny_bundle):
    ScoreMetrics(registry := CollectorRegistry())
    service = Metrics(ScoringService(RankerModel.load(tiny_bundle), ServerConfig()))
    engine = EngineMetrics(None, TokenClock(thinks=True))
    known = metrics_of(service.registry, engine.registry, registry)
    for folder, (name, most) in product(FOLDERS, FILES.items()):
        text = (folder / name).read_text()
        shown = set(re.findall(r"\b(?:scoring|lengthwise)_[a-z0-9_]+", text))
        assert len(shown) >= most
        assert shown <= known


def test_prometheus_reads_the_rules():
    needs("promtool")
    files = [str(folder / "alerts.yaml") for folder in FOLDERS]
    subprocess.run(["promtool", "check", "rules", *files], check=True, capture_output=True)


def test_the_release_workflow_has_its_schema():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    subprocess.run([*command, "vendor.github-workflows", *WORKFLOWS], check=True)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_reads_the_units(unit, tmp_path):
    """In place of the operator's environment: the one of this test."""
    needs("systemd-analyze")
    text = unit.read_text().replace("/opt/lengthwise/.venv/bin/python", sys.executable)
    (tmp_path / unit.name).write_text(text)
    verify = ["systemd-analyze", "verify", str(tmp_path / unit.name)]
    said = subprocess.run(verify, capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, "")


def test_the_deployed_commands_are_understood():
    found = [re.findall(r"^ExecStart=\S+ -m (.*)$", unit.read_text(), re.M)[0] for unit in UNITS]
    found += re.findall(r"command: \[python3, -m, (.*)\]", (ENGINE / "engine.yaml").read_text())
    service, *engines = (re.sub('[",]', "", line).split() for line in found)
    assert service[:2] == ["scoring_service", "serve"]
    parse("serve", serve, service[2:])
    for words in engines:
        assert words[:2] == ["scheduler_adapters", "serve-vllm"]
        ours = words[3 : [*words, "--"].index("--")]
        parse("serve-vllm", serve_vllm.run, [f"--model={words[2]}", *ours])
