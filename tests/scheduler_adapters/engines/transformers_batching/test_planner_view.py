"""The same decisions on a version of transformers whose KV cache is laid out otherwise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

OTHER = "5.17.0"
DECISIONS = Path(__file__).with_name("test_decisions.py")
SOME = "any_ranks and True or policy and (slai or rad or robin) or plenty or pascal_sees"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the other version is; skips where no package index can be reached."""
    target = tmp_path_factory.mktemp("transformers") / OTHER
    # 5.17 refuses the newer hub library that is installed.
    packages = [f"transformers=={OTHER}", "huggingface-hub<2"]
    options = ["--no-deps", "--no-compile", "--quiet", "--retries", "1", "--target", str(target)]
    command = [sys.executable, "-m", "pip", "install", *options, *packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        pytest.skip(f"transformers {OTHER} cannot be installed: {done.stderr.strip()[-300:]}")
    return target


def test_another_version_decides_as_the_simulator_does(folder):
    root = Path(__file__).parents[4]

    def run(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{root}"}
        command = [sys.executable, *arguments]
        done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
        return done.stdout

    found = run("-c", "from importlib.metadata import version; print(version('transformers'))")
    assert found.strip() == OTHER
    quietly = ("-q", "-p", "no:cacheprovider")
    assert " passed" in run("-m", "pytest", *quietly, "-m", "slow", str(DECISIONS), "-k", SOME)
