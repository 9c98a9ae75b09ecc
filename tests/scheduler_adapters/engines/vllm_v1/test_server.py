"""`--scheduler-cls` in the real OpenAI server, whose scheduler lives in a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import Request, urlopen

import pytest

from scheduler_adapters.engines.random_model import make_tiny_model
from scheduler_adapters.engines.vllm_v1.in_process import ENVIRONMENT
from tests.scheduler_adapters.commands.test_serve_vllm_live import free_port
from tests.scheduler_adapters.engines.vllm_v1.test_same_answers import wait_for, wait_until_healthy

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a server with one seat, under PARS."""
    folder = tmp_path_factory.mktemp("server")
    make_tiny_model(folder / "model")
    listens = free_port()
    arguments = {
        "model": folder / "model",
        "served-model-name": "tiny",
        "host": "127.0.0.1",
        "port": listens,
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
        wait_until_healthy(listens, server, log)
        yield listens
    finally:
        server.terminate()
        server.wait(timeout=300)


def complete(port: int, max_tokens: int, **xargs: Any) -> float:
    """Generate exactly `max_tokens` tokens; return the instant of the complete answer."""
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
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=300) as response:
        answer = json.load(response)
    assert answer["usage"]["completion_tokens"] == max_tokens
    return time.monotonic()


def test_scores_in_the_body_order_the_queue(port: int) -> None:
    complete(port, 4)
    lengths = [140, 20, 100, 60]
    with ThreadPoolExecutor(1 + len(lengths)) as pool:
        busy = pool.submit(complete, port, 1000, lengthwise_score=0)
        wait_for(port, "running", 1)
        wait_for(port, "waiting", 0)
        answers = {n: pool.submit(complete, port, n, lengthwise_score=n) for n in lengths}
        finished_s = {n: answer.result() for n, answer in answers.items()}
        assert min(finished_s.values()) > busy.result()
    assert sorted(finished_s, key=finished_s.__getitem__) == sorted(lengths)
