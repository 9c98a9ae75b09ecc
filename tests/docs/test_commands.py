"""The commands that README and guides show run as they stand there, one after the other.

One reader types all of them in one folder: what one command writes the next one reads. What stands
for the reader's own, as an address, is put in its place; where a page shows hours of work, options
for less of it are added. `make` and pip are what makes the tests run. serve-vllm and fits
from a bundle have tests of their own; commands of docs/results are parsed in test_pages.py.
"""

import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pandas as pd
import pyarrow as pa
import pytest

from lengthwise.__main__ import OWN, by_name
from lengthwise.bundle import ModelBundle
from lengthwise.child_processes import free_port, started
from lengthwise.command_line.program import programs
from tests.docs.test_pages import code_blocks, in_loops
from tests.training.commands.data.test_collect import FakeEndpoint, answer, endpoint  # noqa: F401
from tests.training.conftest import tiny_bert  # noqa: F401
from tests.training.drawn import generate

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/guides/*.md"))]
ELSEWHERE = re.compile(
    r"make |pip install |vllm serve |.* -m scheduler_adapters serve-(vllm|ray) "
    r"|.* fit (small|best --e)|.* hf:|.* --push-to-hub "
)
OURS = re.compile(
    r"python -m (lengthwise|training|scoring_service|scheduler_adapters|benchmarks) (.*)"
)

LESS = {
    "training fit": "--epochs 1 --optim.encoder-lr 1e-3 --encoder.backbone BACKBONE --threads 1",
    "scheduler_adapters advise": "--num-requests 60 --draws 10 --bundle run/bundle",
    "scoring_service loadtest": "--rate 20 --seconds 1",
    "scheduler_adapters simulate": "--num-requests 60",
    "scheduler_adapters compare": "--num-requests 60",
    "scheduler_adapters capacity": "--num-requests 60",
}
"""What makes the work of a command small; BACKBONE is the tests' tiny one."""


def typed(page: Path) -> list[str]:
    """The command lines of a page, without comments; the short forms after all others.

    Lines of `advise` are the last: here it scores by the bundle that a quick start makes.
    """
    blocks = [text for language, text in code_blocks(page.read_text()) if language == "sh"]
    lines = [re.sub(r"\s+# .*", "", line) for block in blocks for line in in_loops(block)]
    lines = [line for line in lines if line and not line.startswith("#")]
    short = [line for line in lines if line.startswith("lengthwise ")]
    short.sort(key=lambda line: "advise" in line or "advice/" in line)
    return [line for line in lines if line not in short] + [in_full(line) for line in short]


def in_full(line: str) -> str:
    """The command of a package that a short form stands for."""
    _, name, arguments = line.split(" ", 2)
    return f"python -m {by_name([OWN, *programs().values()])[name].module} {name} {arguments}"


class Reader:
    """Somebody who types commands in one folder, with servers of theirs left running."""

    def __init__(self, endpoint_url: str, backbone: Path) -> None:
        self.backbone = backbone
        self.replaced = {
            "http://127.0.0.1:8000/v1": endpoint_url,
            "127.0.0.1:50051": f"127.0.0.1:{free_port()}",
            "5001": str(free_port()),
            "advice/ranker/bundle": "run/bundle",
            # The data set lengths/m.jsonl has one version of its model.
            "alpaca-vicuna7b 3": "m 1",
            "alpaca-vicuna7b": "m",
        }
        self.servers = ExitStack()
        self.done: set[str] = set()

    def type(self, line: str) -> None:
        """Do what the line says; once, though several pages show it."""
        for shown, own in self.replaced.items():
            line = line.replace(shown, own)
        if line in self.done or ELSEWHERE.match(line):
            return
        self.done.add(line)
        if found := OURS.fullmatch(line):
            self._run_ours(found[1], found[2])
        elif "mlflow ui" in line:
            port = free_port()
            self._serve(f"{line} --port {port} --workers 1", f"http://127.0.0.1:{port}/health")
        elif "mlflow models serve" in line:
            self._serve(line, f"http://127.0.0.1:{self.replaced['5001']}/ping")
        else:
            done = subprocess.run(shlex.split(line), capture_output=True, text=True, check=True)
            assert len(json.loads(done.stdout)["predictions"]) == 1

    def _run_ours(self, package: str, arguments: str) -> None:
        if "--run RUN" in arguments:
            run_id = ModelBundle.load(Path("run/bundle")).manifest.mlflow_run_id
            arguments = arguments.replace("--run RUN", f"--run {run_id}")
        command, *words = shlex.split(arguments)
        if command == "serve":
            serve = [sys.executable, "-m", package, command, *words]
            self.servers.enter_context(started(serve, ready="serving "))
            return
        less = LESS.get(f"{package} {command}", "").replace("BACKBONE", str(self.backbone))
        main = importlib.import_module(f"{package}.__main__").main
        assert main([command, *words, *shlex.split(less)]) == 0, arguments

    def _serve(self, line: str, url: str) -> None:
        """Start a server of MLflow's, and wait until it answers."""
        words = shlex.split(line)
        own = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
        server = self.servers.enter_context(running(words[len(own) :], os.environ | own))
        deadline_s = time.monotonic() + 900
        while server.poll() is None and time.monotonic() < deadline_s:
            with suppress(OSError), urlopen(url, timeout=5):
                return
            time.sleep(0.2)
        raise AssertionError(f"{line} did not answer")


@contextmanager
def running(words: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process and those that it starts, until the block ends."""
    process = subprocess.Popen(words, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def write_files(server: FakeEndpoint) -> None:
    """The reader's own logs and tables, here; the endpoint answers as they say."""
    records = generate(800, seed=3)[0]
    prompts = [record.prompt for record in records]
    tokens = [record.output_tokens for record in records]
    lengths = dict(zip(prompts, tokens, strict=True))
    server.plan = lambda prompt, _: (200, answer(lengths[prompt]))
    chats = []
    for number, (prompt, count) in enumerate(lengths.items()):
        usage = {"prompt_tokens": 9, "completion_tokens": count}
        request = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
        response = {"created": 1_760_000_000 + number / 8, "usage": usage}
        chats.append({"request": request, "response": response, "usage": usage})
    Path("gateway.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    with pa.CompressedOutputStream("chats.json.zst", "zstd") as file:
        file.write(json.dumps([*chats, {"request": {"messages": []}}]).encode())
    pd.DataFrame({"question": [*prompts, ""], "reply.tokens": [*tokens, 3]}).to_csv("chats.csv")
    table = pd.DataFrame({"prompt": prompts, "output_tokens": tokens, "prompt_tokens": 9})
    table[["prompt"]].to_json("prompts.jsonl", orient="records", lines=True)
    table.to_parquet("responses.parquet")
    table.to_json("responses.jsonl", orient="records", lines=True)
    table.assign(score=tokens)[["prompt_tokens", "output_tokens", "score"]].to_csv("requests.csv")
    (policy,) = (
        text
        for language, text in code_blocks((ROOT / "docs/guides/own-policy.md").read_text())
        if language == "python"
    )
    Path("my_policy.py").write_text(policy)


@pytest.mark.slow
def test_every_command_of_readme_and_guides_runs(
    endpoint,  # noqa: F811
    tiny_bert,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    write_files(endpoint)
    reader = Reader(endpoint.url, tiny_bert)
    with reader.servers:
        for page in PAGES:
            for line in typed(page):
                print(f"{page.name}: {line}", flush=True)
                reader.type(line)
    assert len(reader.done) > 25
