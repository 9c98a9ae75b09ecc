"""Pins are one version of each package; `make lint` compares what is installed."""

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PINS = (ROOT / ".ci/constraints.txt").read_text().splitlines()


def test_each_pin_is_one_version_of_one_package():
    lines = [line for line in PINS if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[\w.!+]+", line) for line in lines)
    assert len(lines) == len({line.partition("==")[0].lower() for line in lines}) > 200
    assert lines == sorted(lines, key=str.lower)


def test_another_version_is_a_fault(tmp_path):
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/pins", tmp_path / ".ci/pins")
    old = [re.sub("^numpy==.*", "numpy==0.0.1", line) for line in PINS]
    (tmp_path / ".ci/constraints.txt").write_text("\n".join(old))
    done = subprocess.run([tmp_path / ".ci/pins"], capture_output=True, text=True)
    if "not compared" not in done.stdout:
        assert done.returncode == 1
        assert re.search("^numpy==.* is installed", done.stdout, flags=re.M)


def test_pip_lines_of_the_readme_and_the_image_take_the_pins():
    readme = re.findall(r"^pip install (.*)$", (ROOT / "README.md").read_text(), flags=re.M)
    image = (ROOT / "scoring_service/deploy/Containerfile").read_text()
    lines = [*readme, *re.findall(r"^RUN pip install (.*)$", image, flags=re.M)]
    assert len(lines) == 5
    assert all(re.search(r"-c \S*\bconstraints\.txt ", line) for line in lines)
