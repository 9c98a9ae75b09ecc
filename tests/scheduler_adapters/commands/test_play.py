"""`play`: what it prints works as printed, and nothing is left when it ends."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pandas as pd
import psutil
import pytest

from lengthwise.errors import SchedulingError
from lengthwise.mlflow_store import MlflowStore
from scheduler_adapters.commands.play import open_servers


@pytest.fixture
def trained(tiny_bundle, tmp_path):
    """A training run: a bundle, held-out prompts, and a version in the registry."""
    from mlflow import MlflowClient

    (tmp_path / "bundle").symlink_to(tiny_bundle.path, target_is_directory=True)
    pd.DataFrame({"prompt": ["yes no", "a long essay"] * 20}).to_parquet(tmp_path / "test.parquet")
    registry = MlflowClient(MlflowStore(tmp_path).uri)
    registry.create_registered_model(tiny_bundle.manifest.name, description="a ranker of six words")
    return tmp_path


def lines_until(process: subprocess.Popen[str], last: str) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        yield line
        if line.startswith(last):
            return
    raise AssertionError(f"it ended before it printed {last!r}")


def run(command: str) -> str:
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
def test_the_printed_commands_work_and_ctrl_c_leaves_nothing(trained):
    words = ["play", "--trained", str(trained), "--mlruns-dir", str(trained)]
    with subprocess.Popen(
        [sys.executable, "-m", "scheduler_adapters", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            text = "".join(lines_until(process, "Ctrl-C"))
            completion, requests_total, registry = re.findall(r"^  (curl .*)$", text, flags=re.M)
            completed, counts = run(completion), run(requests_total)
            # On a busy machine a score is later than its request's start: again, until one is not.
            while not (scored := re.findall(r'hint="scored".*\} ([1-9]\S*)$', counts, flags=re.M)):
                run(completion)
                counts = run(requests_total)
            registered = run(registry)
            started = psutil.Process(process.pid).children(recursive=True)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=300)
    assert json.loads(completed)["usage"]["completion_tokens"] > 0
    assert float(*scored) == 1
    assert json.loads(registered)["registered_model"]["description"] == "a ranker of six words"
    assert process.returncode == 0
    ports = {int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", text)}
    assert len(ports) == 2
    assert len(started) >= 3  # MLflow and its worker, vLLM and its engine
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    for one in psutil.wait_procs(started, timeout=300)[1]:
        assert one.status() == psutil.STATUS_ZOMBIE  # ended; nobody asks how


def test_when_one_server_dies_the_others_end_with_its_log_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    message = "second ended with 1; the end of .*second.log:\n.*No module named nowhere"
    with open_servers(tmp_path) as servers:
        servers.start("first", ["http.server", "--bind=127.0.0.1", "0"])
        servers.start("second", ["nowhere"])
        with pytest.raises(SchedulingError, match=message):
            servers.watch(lambda: False)
    assert servers.running["first"].wait(timeout=300) == -signal.SIGTERM
