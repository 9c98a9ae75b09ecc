"""`serve-vllm` whole: the unmodified `openai` client, a scoring service that dies and returns."""

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import numpy as np
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lengthwise.child_processes import free_port
from scheduler_adapters.commands.serve_vllm import server_module
from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER
from scheduler_adapters.engines.random_model import VOCABULARY, make_tiny_model
from scheduler_adapters.engines.vllm_v1.in_process import ENVIRONMENT

pytestmark = pytest.mark.vllm

START_WITHIN_S = 900
NUM_CLIENTS = 64
MAX_TOKENS = 12
SEATS = 4
CLASSES = {
    "classes": {"chat": {"tbt_s": 0.05}, "batch": {}},
    "api_keys": {"sk-chat": "chat"},
    "default": "batch",
}
DEAD_PROXIES = dict.fromkeys(("http_proxy", "HTTPS_PROXY", "all_proxy"), "http://127.0.0.1:9")
DEAD_PROXIES |= {"no_proxy": "", "NO_PROXY": ""}
"""Environment of every server here: no process of one machine reaches another by a proxy."""
FINISHED = "lengthwise_e2e_seconds_count"
PROMPTS = {"yes": "yes no short", "essay": "long essay poem"}
"""The tiny ranker's shortest and longest: scores follow their words."""


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
    separate = "--distributed-executor-backend=uni" not in vllms
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(separate))
    with log.open("w") as written:
        server = subprocess.Popen(command, stdout=written, stderr=written, env=environment)
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", server, log)
        yield Live(f"http://127.0.0.1:{port}", server.pid, timeline)
    finally:
        server.terminate()
        server.wait(timeout=300)


@pytest.fixture(scope="module")
def scoring(tiny_bundle):
    process = ScoringProcess(tiny_bundle.path)
    yield process
    process.kill()


@pytest.fixture(scope="module")
def live(tmp_path_factory, scoring):
    folder = tmp_path_factory.mktemp("serve")
    (folder / "classes.json").write_text(json.dumps(CLASSES))
    own = ["--deadline-s=3", "--target-model=tiny-llm", f"--classes={folder / 'classes.json'}"]
    own.append("--client-hints=true")
    vllms = ["--max-model-len=1024", f"--max-num-seqs={SEATS}"]
    with serving(folder, scoring.address, own, vllms) as live:
        yield live


def wait_until_healthy(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline_s:
        assert server.poll() is None, log.read_text()[-4000:]
        with suppress(URLError, ConnectionError), urlopen(f"{url}/health", timeout=30):
            return
        time.sleep(0.5)
    raise AssertionError(f"no answer within {START_WITHIN_S} s: {log.read_text()[-4000:]}")


def client(live: Live) -> Any:
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=f"{live.url}/v1", api_key="sk-chat", max_retries=0, timeout=300)


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
    """Places that the short ones finish before the long ones, on average; at most 32."""
    places = {kind: [p for p, k in enumerate(order) if k == kind] for kind in PROMPTS}
    return mean(places["essay"]) - mean(places["yes"])


def test_behind_dead_proxies_all_are_scored_and_short_end_first(live):
    before = live.outcomes()
    asyncio.run(burst(live, leaves=False))
    assert live.outcomes_since(before) == {"scored": NUM_CLIENTS}
    assert live.sample("lengthwise_ttft_seconds_count", user_class="chat") == NUM_CLIENTS
    assert live.sample("lengthwise_tpot_seconds_count", user_class="chat") == NUM_CLIENTS
    assert live.sample("lengthwise_e2e_seconds_count") == NUM_CLIENTS
    assert live.sample("lengthwise_engine_requests_total", hint="scored") == NUM_CLIENTS
    assert live.sample("lengthwise_resident_requests") == 0
    for name in ("first_answer_seconds", "qoe"):
        assert live.sample(f"lengthwise_{name}_count", user_class="chat") == NUM_CLIENTS
    gaps = live.sample("lengthwise_tbt_seconds_count", user_class="chat", phase="answering")
    assert gaps == NUM_CLIENTS * (MAX_TOKENS - 1)
    ttft_s, e2e_s = (
        live.sample(f"lengthwise_{name}_seconds_sum", user_class="chat") for name in ("ttft", "e2e")
    )
    vllms_s = live.sample("vllm:time_to_first_token_seconds_sum")
    assert 0 < ttft_s < e2e_s
    assert ttft_s == pytest.approx(vllms_s, rel=0.05)
    assert lead(asyncio.run(burst(live))) > NUM_CLIENTS / 4
    live.wait_until_idle()


def test_a_response_is_scored_and_counted_to_its_class(live):
    from openai import OpenAI

    before = live.outcomes()
    served = live.sample("lengthwise_e2e_seconds_count", user_class="chat")
    with OpenAI(base_url=f"{live.url}/v1", api_key="sk-chat", max_retries=0) as openai:
        answer = openai.responses.create(model="tiny", input="essay", max_output_tokens=5)
    assert answer.status in ("completed", "incomplete")
    assert live.outcomes_since(before) == {"scored": 1}
    assert live.sample("lengthwise_e2e_seconds_count", user_class="chat") == served + 1


def test_a_router_reads_the_load_of_an_idle_engine(live):
    live.wait_until_idle()
    with urlopen(f"{live.url}/lengthwise/load", timeout=300) as response:
        (report,) = json.load(response)
    assert report["waiting"] == report["answering"] == report["kv_tokens"] == 0
    assert report["on_time"]


def test_no_request_fails_if_the_scoring_service_dies_or_returns(live, scoring):
    asyncio.run(burst(live, dies=scoring))
    before = live.outcomes()
    order = asyncio.run(burst(live))
    counts = live.outcomes_since(before)
    assert counts.total() == NUM_CLIENTS
    assert counts.keys() <= {"unscored breaker_open", "unscored unavailable", "late timeout"}
    assert abs(lead(order)) < NUM_CLIENTS / 8  # by arrival, and those are shuffled
    scoring.start()
    deadline_s, before = time.monotonic() + 900, live.outcomes()
    while not live.outcomes_since(before)["scored"]:
        assert time.monotonic() < deadline_s
        asyncio.run(burst(live))
    before = live.outcomes()
    assert lead(asyncio.run(burst(live))) > NUM_CLIENTS / 4
    assert live.outcomes_since(before) == {"scored": NUM_CLIENTS}


def complete(live: Live, **body: Any) -> dict[str, Any]:
    content = json.dumps({"model": "tiny", "prompt": "yes", "max_tokens": 3, **body}).encode()
    request = Request(f"{live.url}/v1/completions", content, {"Content-Type": "application/json"})
    with urlopen(request, timeout=300) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def test_the_engines_timeline_agrees_with_what_vllm_reports(live):
    from scheduler_adapters.timeline.latency_metrics import summarize
    from scheduler_adapters.timeline.timeline import read_timeline

    asyncio.run(burst(live, leaves=False))
    live.wait_until_idle()
    live.wait_for_timeline()
    newest = read_timeline(live.timeline)
    newest = newest.take(np.arange(len(newest.requests)) >= len(newest.requests) - NUM_CLIENTS)
    assert (newest.requests.output_tokens == 12).all()
    assert set(newest.requests.user_class) == {"chat"}
    assert set(newest.requests.tbt_s) == {0.05}
    assert (newest.requests.arrival_s <= newest.scheduled_s).all()
    assert (newest.scheduled_s < newest.first_token_s).all()
    assert summarize(newest).num_finished == NUM_CLIENTS


async def mixed_requests(live: Live, numbers: range) -> None:
    """One in four each: served, served with unusable hints, refused, and left by its client."""
    import aiohttp

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        body: dict[str, Any] = {"model": "tiny", "prompt": f"poem w{number % 500}", "max_tokens": 1}
        kind = number % 4
        if kind == 1:
            body["vllm_xargs"] = {"lengthwise_score": "NaN", "lengthwise_tbt_s": -1}
        if kind == 2:
            body["vllm_xargs"] = {"lengthwise_score": {"not": "a number"}}
        if kind == 3:
            body |= {"stream": True, "max_tokens": 500, "ignore_eos": True}
        async with session.post(f"{live.url}/v1/completions", json=body) as response:
            assert response.status == (400 if kind == 2 else 200)
            await (response.content.readany() if kind == 3 else response.read())

    timeout = aiohttp.ClientTimeout(total=120)
    headers = {"Authorization": "Bearer sk-chat"}
    async with aiohttp.ClientSession(
        timeout=timeout, headers=headers, connector=aiohttp.TCPConnector(limit=NUM_CLIENTS)
    ) as session:
        await asyncio.gather(*(one(session, number) for number in numbers))


def test_five_thousand_requests_leave_nothing_behind(live):
    asyncio.run(mixed_requests(live, range(1000)))
    live.wait_until_idle()
    before_mib = live.memory_mib()
    invalid = live.sample("lengthwise_engine_requests_total", hint="invalid")
    asyncio.run(mixed_requests(live, range(1000, 5000)))
    live.wait_until_idle()
    # 5 MiB were seen; 3,000 requests that the engine holds on to would be 12 more.
    assert live.memory_mib() - before_mib < 12
    assert live.sample("vllm:kv_cache_usage_perc") == 0
    assert live.sample("lengthwise_resident_requests") == 0
    assert live.sample("lengthwise_engine_requests_total", hint="invalid") == invalid + 1000


def test_figures_that_cannot_be_kept_cost_no_request(live):
    """Timeline and shared folder are removed under load: lines and reports are dropped."""
    folder = Path(psutil.Process(live.pid).environ()[SHARED_FOLDER])

    async def main() -> None:
        openai = client(live)
        tasks = [asyncio.create_task(stream(openai, n, "essay", 100)) for n in range(NUM_CLIENTS)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        live.timeline.unlink()
        await asyncio.gather(*tasks)
        deadline_s = time.monotonic() + 900
        while live.sample("lengthwise_telemetry_dropped_total") < NUM_CLIENTS / 2:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.1)
        shutil.rmtree(folder)
        await asyncio.gather(*(stream(openai, n, "yes") for n in range(NUM_CLIENTS)))
        await openai.close()

    asyncio.run(main())
    assert live.sample("lengthwise_dropped_reports") > 0
    assert live.sample(FINISHED) == 0
    log = (live.timeline.parent / "log").read_text()
    assert log.count("timeline: some are dropped") == 1
    assert log.count("reports of the engine: some are dropped") == 1


def test_the_server_ends_soon_while_its_clients_stay(live):
    async def main() -> None:
        openai = client(live)
        tasks = [asyncio.create_task(stream(openai, n, "essay", 900)) for n in range(NUM_CLIENTS)]
        await asyncio.to_thread(live.wait_until, "vllm:num_requests_running", SEATS)
        server = psutil.Process(live.pid)
        server.terminate()
        await asyncio.to_thread(server.wait, 60)  # two seconds; its clients would wait 300
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await openai.close()

    asyncio.run(main())
