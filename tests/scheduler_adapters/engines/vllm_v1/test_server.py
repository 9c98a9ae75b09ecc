"""`--scheduler-cls` in the real OpenAI server, whose scheduler lives in a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scheduler_adapters.engines.random_model import make_tiny_model
from scheduler_adapters.engines.vllm_v1.in_process import ENVIRONMENT

pytestmark = pytest.mark.vllm

START_WITHIN_S = 900


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server with one seat, under PARS."""
    folder = tmp_path_factory.mktemp("server")
    make_tiny_model(folder / "model")
    port = free_port()
    arguments = {
        "model": folder / "model",
        "served-model-name": "tiny",
        "host": "127.0.0.1",
        "port": port,
        "dtype": "bfloat16",
        "block-size": 32,
        "max-model-len": 1024,
        "max-num-seqs": 1,
        "max-num-batched-tokens": 256,
        "kv-cache-memory-bytes": 32 << 20,
        "scheduler-cls": "scheduler_adapters.engines.vllm_v1.pars",
        "additional-config": json.dumps({"lengthwise": {"starve_after_s": 600}}),
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += [f"--{name}={value}" for name, value in arguments.items()]
    command += ["--skip-tokenizer-init", "--enforce-eager"]
    environment = {**os.environ, **ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    log = folder / "log"
    with log.open("w") as written:
        server = subprocess.Popen(command, stdout=written, stderr=written, env=environment)
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=300)


def wait_until_healthy(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline_s:
        assert server.poll() is None, log.read_text()[-4000:]
        try:
            with urlopen(f"{url}/health", timeout=30):
                return
        except (URLError, ConnectionError):
            time.sleep(0.5)
    raise AssertionError(f"no answer within {START_WITHIN_S} s: {log.read_text()[-4000:]}")


def complete(url: str, max_tokens: int, **xargs: Any) -> float:
    """Ask for exactly `max_tokens` tokens; the instant at which the answer was whole."""
    body = {
        "model": "tiny",
        "prompt": [5, 6, 7, max_tokens % 500],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "detokenize": False,
        "vllm_xargs": xargs,
    }
    request = Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=300) as response:
        answer = json.load(response)
    assert answer["usage"]["completion_tokens"] == max_tokens
    return time.monotonic()


def wait_until(url: str, **requests: int) -> None:
    """Until /metrics shows so many requests running and waiting."""
    deadline_s = time.monotonic() + 900
    wanted = {f"vllm:num_requests_{state}": float(count) for state, count in requests.items()}
    while True:
        with urlopen(f"{url}/metrics", timeout=300) as response:
            families = text_string_to_metric_families(response.read().decode())
            samples = {s.name: s.value for family in families for s in family.samples}
        if all(samples.get(name) == count for name, count in wanted.items()):
            return
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_scores_in_the_body_order_the_queue(url: str) -> None:
    complete(url, 4)
    lengths = [140, 20, 100, 60]
    with ThreadPoolExecutor(1 + len(lengths)) as pool:
        busy = pool.submit(complete, url, 1000, lengthwise_score=0)
        wait_until(url, running=1, waiting=0)
        answers = {n: pool.submit(complete, url, n, lengthwise_score=n) for n in lengths}
        finished_s = {n: answer.result() for n, answer in answers.items()}
        assert min(finished_s.values()) > busy.result()
    assert sorted(finished_s, key=finished_s.__getitem__) == sorted(lengths)


@pytest.mark.parametrize("score", ["long", [1, 2], "NaN"])
def test_a_score_that_is_no_number_is_answered_all_the_same(url: str, score: Any) -> None:
    complete(url, 5, lengthwise_score=score)


def test_the_server_itself_refuses_what_it_cannot_carry(url: str) -> None:
    with pytest.raises(HTTPError, match="400"):
        complete(url, 5, lengthwise_score={"a": 1})
