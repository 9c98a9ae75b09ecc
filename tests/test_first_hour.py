"""A stranger's first hour: a chat log, and then only commands, each as the one before named it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pytest

from scheduler_adapters.engines.random_model import make_tiny_model
from scheduler_adapters.engines.vllm_v1.in_process import ENVIRONMENT
from tests.scheduler_adapters.commands.vllm_server import (
    Live,
    free_port,
    wait_until_healthy,
    write_tokenizer,
)

pytestmark = pytest.mark.vllm

LENGTHWISE = Path(sys.executable).parent / "lengthwise"
SHORT = os.environ.get("LENGTHWISE_WHOLE_HOUR") != "1"
LINES = 5000
TOPICS = {"list three colours like": 20, "explain in a few words": 120, "write an essay about": 600}
"""Beginnings of prompts, and the median length of their answers, tokens."""


def write_log(path: Path) -> None:
    """What an OpenAI-style gateway writes: 5,000 chats of seven minutes."""
    random = np.random.default_rng(0)
    times_s = 1_760_000_000 + np.cumsum(random.exponential(1 / 12, LINES))
    with path.open("w") as log:
        for number, time_s in enumerate(times_s.tolist()):
            topic, median = list(TOPICS.items())[random.integers(len(TOPICS))]
            text = f"{topic} w{random.integers(400)} and w{random.integers(400)}"
            tokens = int(np.clip(median * random.lognormal(0, 0.4), 1, 2000))
            usage = {"prompt_tokens": len(text.split()) + 8, "completion_tokens": tokens}
            row = {
                "request": {"model": "m", "messages": [{"role": "user", "content": text}]},
                "response": {"id": f"chatcmpl-{number}", "created": time_s, "usage": usage},
            }
            log.write(json.dumps(row) + "\n")


def lengthwise(folder: Path, command: str, *more: str) -> list[str]:
    """Run a command as it was typed; the commands that it names to go on with."""
    started_s = time.monotonic()
    words = [str(LENGTHWISE), *command.split()[1:], *more]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    print(f"{command}: {time.monotonic() - started_s:.0f} s\n{done.stdout}")
    return re.findall(r"^next: (.*)$", done.stdout, flags=re.M)


@contextmanager
def running(folder: Path, command: str, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command that serves until the block ends."""
    environment = {**os.environ, **ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    words = [str(LENGTHWISE), *command.split()[1:], *more]
    with (folder / f"{words[1]}.log").open("w") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log, env=environment)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=300)


def test_from_a_chat_log_to_scores_in_a_running_engine(tmp_path):
    started_s = time.monotonic()
    write_log(tmp_path / "gateway.jsonl")
    advise = ["--max-num-seqs", "32", "--num-requests", "1000", "--instances", "1"]
    if SHORT:
        prompts = {"train": 256, "val": 64, "test": 250}
        less = {"epochs": 1} | {f"split.{part}-prompts": count for part, count in prompts.items()}
        advise += ["--draws", "10", "--training", json.dumps(less)]
    after = lengthwise(tmp_path, "lengthwise advise --log gateway.jsonl --out advice", *advise)
    assert "report.html" in {path.name for path in (tmp_path / "advice").iterdir()}
    advice = json.loads((tmp_path / "advice" / "advise.json").read_text())
    assert advice["answer"] != "no", advice["reason"]
    (vllm,) = after
    assert vllm.split()[:2] == ["lengthwise", "serve-vllm"]
    if not SHORT:
        lengthwise(tmp_path, "lengthwise fit demo --data.dataset gateway.jsonl --out run")
        vllm = vllm.replace("advice/ranker/bundle", "run/bundle")
    model, port = make_tiny_model(tmp_path / "model"), free_port()
    write_tokenizer(model)
    own = ["--deadline-s=5", f"--port={port}", "--", "--max-model-len=1024", "--enforce-eager"]
    own += ["--block-size=32", f"--kv-cache-memory-bytes={32 << 20}", "--served-model-name=tiny"]
    with running(tmp_path, vllm.replace("MODEL", str(model)), *own) as server:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(url, server, tmp_path / "serve-vllm.log")
        live = Live(url, server.pid, tmp_path / "timeline.jsonl")
        for topic in TOPICS:
            assert answer(url, f"{topic} w1 and w2")
        assert live.sample("lengthwise_requests_total", outcome="engine") == len(TOPICS)
        assert live.sample("lengthwise_engine_requests_total", hint="failed") == 0
    print(f"the whole: {time.monotonic() - started_s:.0f} s")


def answer(url: str, prompt: str) -> str:
    """The answer of a server to a chat."""
    messages = [{"role": "user", "content": prompt}]
    body = json.dumps({"model": "tiny", "messages": messages, "max_tokens": 4, "min_tokens": 4})
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{url}/v1/chat/completions", body.encode(), headers), timeout=300) as got:
        return str(json.load(got)["choices"][0]["message"]["content"])
