"""Pins are one version of each package, and deviations are found; `make lint` looks for some."""

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def pins():
    spec = importlib.util.spec_from_file_location("pins", ROOT / ".ci/pins.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_pin_is_one_version_of_one_package(pins):
    lines = [line for line in pins.PINS.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[\w.!+]+", line) for line in lines)
    assert len(lines) == len(pins.pinned()) > 200
    assert lines == sorted(lines, key=str.lower)
    assert not pins.FREE & pins.pinned().keys()


def test_another_version_and_an_unpinned_package_are_faults(pins, monkeypatch, tmp_path):
    few = tmp_path / "constraints.txt"
    few.write_text("".join(f"{name}==0.0.1\n" for name in pins.pinned() if name != "pytest"))
    monkeypatch.setattr(pins, "PINS", few)
    monkeypatch.setattr(pins.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0))
    found = pins.faults()
    assert any(line.startswith("pytest ") and line.endswith("nothing of it") for line in found)
    assert any(line.startswith("numpy ") and line.endswith("has 0.0.1") for line in found)


def test_pip_lines_of_the_readme_and_the_image_take_the_pins():
    readme = re.findall(r"^pip install (.*)$", (ROOT / "README.md").read_text(), flags=re.M)
    image = (ROOT / "scoring_service/deploy/Containerfile").read_text()
    lines = [*readme, *re.findall(r"^RUN pip install (.*)$", image, flags=re.M)]
    assert len(lines) == 4
    assert all(re.search(r"-c \S*\bconstraints\.txt ", line) for line in lines)
