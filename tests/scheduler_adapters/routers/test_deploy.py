"""Deploy files of a cluster: manifests, commands and the metrics of the dashboard."""

import json
import re
from pathlib import Path

import pytest
import yaml

from lengthwise.command_line.options import parse
from scheduler_adapters import routers
from scheduler_adapters.__main__ import PROGRAM

ROOM = Path(routers.__file__).parent
FILES = [ROOM / "deploy/picker.yaml", ROOM / "deploy/ray.yaml"]
FILES += [ROOM.parent / "engines/deploy/engine.yaml"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_labels_ports_and_hosts_of_the_manifests_agree(file):
    text = file.read_text()
    specs = {(o["kind"], o["metadata"]["name"]): o["spec"] for o in yaml.safe_load_all(text)}
    pods = [spec["template"] for (kind, _), spec in specs.items() if kind == "Deployment"]
    by_app = {pod["metadata"]["labels"]["app"]: pod["spec"]["containers"][0] for pod in pods}
    for (kind, _), spec in specs.items():
        if kind == "Deployment":
            assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        elif kind == "Service":
            ports = {port["name"] for port in by_app[spec["selector"]["app"]]["ports"]}
            assert {port["targetPort"] for port in spec["ports"]} <= ports
        elif kind == "InferencePool":
            assert spec["selector"]["matchLabels"]["app"] in by_app
            assert ("Service", spec["endpointPickerRef"]["name"]) in specs
    hosts = re.findall(r"(lengthwise-[a-z]+):\d+", text)
    assert {("Service", host) for host in hosts} <= specs.keys()
    for container in by_app.values():
        for probe in (each for name, each in container.items() if name.endswith("Probe")):
            port = probe["httpGet"]["port"] if "httpGet" in probe else probe["grpc"]["port"]
            assert port in {each for port in container["ports"] for each in port.values()}
        line = " ".join(container["command"] + container.get("args", []))
        command, *arguments = [*line.partition("scheduler_adapters ")[2].split(), ""]
        assert command in ("", "serve-vllm", "serve-picker", "serve-ray")
        if command in PROGRAM.commands and command != "serve-vllm":
            parse(command, PROGRAM.command(command), arguments[:-1])


def test_the_dashboard_shows_only_metrics_that_exist():
    ray = pytest.importorskip("ray")
    panels = json.loads((ROOM / "deploy/grafana-dashboard.json").read_text())["panels"]
    shown = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    ours = set(re.findall(r"ray_lengthwise_([a-z_]+?)(?:_total|_bucket)?\b", shown))
    made = set(
        re.findall(r'"lengthwise_([a-z_]+)"', gateway := (ROOM / "ray/gateway.py").read_text())
    )
    assert ours == made | set(re.findall(r'_Exported\("(\w+)"', gateway))
    private = (Path(ray.__file__).parent / "serve/_private").glob("*.py")
    known = "".join(path.read_text() for path in private)
    of_ray = set(re.findall(r"ray_(serve_\w+)", shown))
    assert len(of_ray) == 3
    assert all(f'"{name}"' in known for name in of_ray)
    engines = set(re.findall(r"(?:vllm:|ray_vllm_)(\w+)", shown))
    assert all(name in (ROOM / "endpoint_picker/engine_scrape.py").read_text() for name in engines)
