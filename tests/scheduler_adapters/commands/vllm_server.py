"""A real vLLM server under `serve-vllm` with a tiny model, its scoring service and clients."""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from lengthwise.child_processes import free_port
from scheduler_adapters.commands.serve_vllm import server_module
from scheduler_adapters.engines.random_model import VOCABULARY, make_tiny_model
from scheduler_adapters.engines.vllm_v1.in_process import ENVIRONMENT

START_WITHIN_S = 900
NUM_CLIENTS = 64
MAX_TOKENS = 12
SEATS = 2
PROMPTS = {"yes": "yes no short", "essay": "long essay poem"}
"""The tiny ranker's shortest and longest: scores follow their words."""
DEAD_PROXIES = dict.fromkeys(("http_proxy", "HTTPS_PROXY", "all_proxy"), "http://127.0.0.1:9")
DEAD_PROXIES |= {"no_proxy": "", "NO_PROXY": ""}
"""Environment of every server here: no process of one machine reaches another by a proxy."""
FINISHED = "lengthwise_e2e_seconds_count"
ONE_PROCESS = ["--distributed-executor-backend=uni"]
"""The model runs in the engine's process, as on one GPU; a worker would spin beside it."""


def write_tokenizer(folder: Path) -> None:
    """A word-level tokenizer over the tiny model's vocabulary, with a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[UNK]", "</s>", "yes", "no", "short", "long", "essay", "poem"]
    words += [f"w{number}" for number in range(VOCABULARY - len(words))]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="</s>", pad_token="</s>"
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    fast.save_pretrained(folder)


class ScoringProcess:
    """A scoring service that can be killed and started again at the same address."""

    def __init__(self, bundle: Path) -> None:
        self.bundle = bundle
        self.address = f"127.0.0.1:{free_port()}"
        self.start()

    def start(self, *more: str) -> None:
        command = [sys.executable, "-m", "scoring_service", "serve", *more]
        command += ["--bundle", str(self.bundle), "--address", self.address]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert "serving" in self.process.stdout.readline()

    def kill(self) -> None:
        with self.process:
            self.process.kill()


@dataclass(frozen=True)
class Live:
    """The running server."""

    url: str
    pid: int
    timeline: Path

    def samples(self, name: str) -> list[Any]:
        """The samples of one name on /metrics."""
        with urlopen(f"{self.url}/metrics", timeout=300) as response:
            families = list(text_string_to_metric_families(response.read().decode()))
        return [s for family in families for s in family.samples if s.name == name]

    def sample(self, name: str, **labels: str) -> float:
        """Their sum over the samples with these labels."""
        return sum(s.value for s in self.samples(name) if labels.items() <= s.labels.items())

    def outcomes(self) -> Counter[str]:
        """Requests so far by what became of their score: "scored", "unscored unavailable"."""
        samples = self.samples("lengthwise_requests_total")
        named = ((f"{s.labels['outcome']} {s.labels['reason']}", s.value) for s in samples)
        return Counter({name.strip(): int(value) for name, value in named})

    def outcomes_since(self, before: Counter[str]) -> Counter[str]:
        return self.outcomes() - before

    def memory_mib(self) -> float:
        """Resident memory of vLLM's processes."""
        server = psutil.Process(self.pid)
        each = (p.memory_info().rss for p in [server, *server.children(recursive=True)])
        return sum(each) / 2**20

    def wait_until(self, name: str, value: float, **labels: str) -> None:
        """Until /metrics shows that value."""
        deadline_s = time.monotonic() + 900
        while (found := self.sample(name, **labels)) != value:
            assert time.monotonic() < deadline_s, f"{name} is {found}, not {value}"
            time.sleep(0.1)

    def wait_for_timeline(self) -> None:
        """Until it holds each finished request; a thread writes it."""
        deadline_s = time.monotonic() + 900
        while len(self.timeline.read_text().splitlines()) != self.sample(FINISHED):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    def wait_until_idle(self) -> None:
        for state in ("waiting", "running"):
            self.wait_until(f"vllm:num_requests_{state}", 0)


@contextmanager
def serving(
    folder: Path,
    scorer: str,
    own: list[str] | None,
    vllms: list[str],
    *,
    model: Path | None = None,
    start: Sequence[str] = ("-m", "scheduler_adapters"),
) -> Iterator[Live]:
    """`serve-vllm` with a model (none: a tiny one), its own options and vLLM's, for the block.

    Without a list of its own options: plain vLLM. `start`: Python's arguments for our program.
    """
    folder.mkdir(exist_ok=True)
    model = model or make_tiny_model(folder / "model")
    write_tokenizer(model)
    port = free_port()
    timeline, log = folder / "timeline.jsonl", folder / "log"
    command = [sys.executable, "-m", *server_module(str(model)), f"--port={port}"]
    if own is not None:
        command = [sys.executable, *start, "serve-vllm", str(model), f"--port={port}"]
        command += ["--policy=pars", f"--timeline={timeline}", *own]
        command += [*([f"--scorer={scorer}"] if scorer else []), "--"]
    command += ["--served-model-name=tiny", "--dtype=bfloat16", "--block-size=32"]
    command += ["--max-num-batched-tokens=256", "--enforce-eager"]
    command += [f"--kv-cache-memory-bytes={32 << 20}", *vllms]
    environment = {**os.environ, **ENVIRONMENT, **DEAD_PROXIES}
    # The CPU build runs the model in the engine's process only without this switch.
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(ONE_PROCESS[0] not in vllms))
    with log.open("w") as written:
        server = subprocess.Popen(command, stdout=written, stderr=written, env=environment)
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", server, log)
        yield Live(f"http://127.0.0.1:{port}", server.pid, timeline)
    finally:
        server.terminate()
        server.wait(timeout=300)


def wait_until_healthy(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline_s:
        assert server.poll() is None, log.read_text()[-4000:]
        with suppress(URLError, ConnectionError), urlopen(f"{url}/health", timeout=30):
            return
        time.sleep(0.5)
    raise AssertionError(f"no answer within {START_WITHIN_S} s: {log.read_text()[-4000:]}")


def client(live: Live, key: str = "sk-chat", address: str = "127.0.0.1") -> Any:
    from openai import AsyncOpenAI

    limits = httpx.Limits(max_connections=None)
    transport = httpx.AsyncHTTPTransport(local_address=address, limits=limits)
    return AsyncOpenAI(
        base_url=f"{live.url}/v1", api_key=key, max_retries=0, timeout=900,
        http_client=httpx.AsyncClient(transport=transport, timeout=900),
    )  # fmt: skip


async def stream(
    openai: Any, number: int, kind: str, max_tokens: int = MAX_TOKENS, *, leaves: bool = False
) -> tuple[str, float]:
    """Stream a chat or a completion; the kind and the instant of the last chunk.

    A client that leaves does so after `MAX_TOKENS` chunks: the server does not know the length.
    """
    prompt = f"{PROMPTS[kind]} w{number}"
    common = {"model": "tiny", "max_tokens": 900 if leaves else max_tokens, "stream": True}
    common |= {"extra_body": {} if leaves else {"ignore_eos": True}}
    if number % 2:
        chunks = await openai.completions.create(prompt=prompt, **common)
    else:
        messages = [{"role": "user", "content": prompt}]
        chunks = await openai.chat.completions.create(messages=messages, **common)
    reasons = []
    async for chunk in chunks:
        reasons += [choice.finish_reason for choice in chunk.choices]
        if leaves and len(reasons) >= MAX_TOKENS:
            break
    await chunks.close()
    assert leaves or reasons[-1] == "length"
    return kind, time.monotonic()


async def burst(
    live: Live, dies: ScoringProcess | None = None, *, leaves: bool = True
) -> list[str]:
    """All clients at once, short and long prompts shuffled; the kinds in order of completion.

    A scoring service that dies is killed once 8 are done.
    """
    kinds = [kind for kind in PROMPTS for _ in range(NUM_CLIENTS // 2)]
    random.Random(0).shuffle(kinds)
    openai = client(live)
    tasks = [
        asyncio.create_task(stream(openai, n, kind, leaves=leaves)) for n, kind in enumerate(kinds)
    ]
    if dies is not None:
        while sum(task.done() for task in tasks) < 8:
            await asyncio.sleep(0.005)
        dies.kill()
    finished = await asyncio.gather(*tasks)
    await openai.close()
    return [kind for kind, _ in sorted(finished, key=lambda one: one[1])]


def lead(order: list[str]) -> float:
    """Places that the short ones finish before the long ones, on average; at most half of all."""
    places = {kind: [p for p, k in enumerate(order) if k == kind] for kind in PROMPTS}
    return mean(places["essay"]) - mean(places["yes"])


@asynccontextmanager
async def seats_held(live: Live, openai: Any, prompt: str) -> AsyncIterator[None]:
    """All seats are taken until the block ends."""

    async def hold(number: int) -> None:
        chunks = await openai.completions.create(
            model="tiny", prompt=f"{prompt} w{number}", max_tokens=8000, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        async for _ in chunks:
            pass

    holders = [asyncio.create_task(hold(number)) for number in range(SEATS)]
    await asyncio.to_thread(live.wait_until, "vllm:num_requests_running", SEATS)
    yield
    for holder in holders:
        holder.cancel()
    await asyncio.gather(*holders, return_exceptions=True)


Sender = tuple[str, str]
"""API key and local address."""


async def ask_one(openai: Any, kind: str, number: int, tokens: int) -> None:
    # Without ignore_eos: else the length would be known, and all would rank alike.
    prompt = f"{PROMPTS[kind]} w{number}"
    await openai.completions.create(model="tiny", prompt=prompt, max_tokens=tokens, temperature=0)


async def flooded(
    live: Live, honest: Sender, flooding: Sequence[Sender], size: int, requests: int, tokens: int
) -> tuple[list[float], list[int]]:
    """Latencies of honest requests, one after another, and the flood's that ended meanwhile."""
    # Many pools: one of 500 connections costs the sender more than the server.
    ended, senders = 0, [client(live, *who) for who in [*flooding] * (1 + size // 16)]

    async def flood(number: int) -> None:
        nonlocal ended
        while True:
            await ask_one(senders[number % len(senders)], "yes", number, tokens)
            ended += 1

    tasks = [asyncio.create_task(flood(number)) for number in range(size)]
    own = client(live, *honest)
    while ended < 4:
        await asyncio.sleep(0.01)
    latency_s, passed = [], []
    for number in range(requests):
        began_s, before = time.monotonic(), ended
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ask_one(own, "essay", number, tokens), 60)
        latency_s.append(time.monotonic() - began_s)
        passed.append(ended - before)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for one in (own, *senders):
        await one.close()
    return latency_s, passed
