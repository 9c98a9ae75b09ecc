"""`serve-vllm` under load while its figures cannot be kept, while its scorer is away, and its end.

    python tests/soak_engine.py faults      full disk (mounts a tmpfs: root), removed, stopped pipe
    python tests/soak_engine.py outage      scorer dead, refusing, hung, slow, back again; order
    python tests/soak_engine.py ends 20     SIGTERM under load, so many times

Each line is one JSON object. Without a name all three run, beside a tiny model on the CPU.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from unittest.mock import patch

import aiohttp
import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scheduler_adapters.timeline.timeline import read_timeline  # noqa: E402
from tests.conftest import write_tiny_bundle  # noqa: E402
from tests.scheduler_adapters.commands.test_serve_vllm_live import (  # noqa: E402
    Live,
    ScoringProcess,
    serving,
)

SEATS = 8
VLLM = ["--max-model-len=1024", f"--max-num-seqs={SEATS}"]


async def served(live: Live, count: int, at_once: int, max_tokens: int) -> list[float]:
    """Seconds to the first token of each request that got all its tokens, by time of sending."""
    gate, waits_s = asyncio.Semaphore(at_once), dict[int, float]()

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        length = random.Random(number).randrange(1, 2 * max_tokens)
        body = {"model": "tiny", "prompt": f"poem w{number % 500}", "max_tokens": length}
        body |= {"ignore_eos": True, "stream": True}
        async with gate:
            begun_s, first_s, is_whole = time.monotonic(), 0.0, False
            with suppress(aiohttp.ClientError):
                async with session.post(f"{live.url}/v1/completions", json=body) as response:
                    async for line in response.content:
                        first_s = first_s or time.monotonic() - begun_s
                        is_whole |= b'"finish_reason":"length"' in line
            if is_whole:
                waits_s[number] = first_s

    timeout, no_limit = aiohttp.ClientTimeout(total=600), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=no_limit) as session:
        await asyncio.gather(*(one(session, number) for number in range(count)))
    return [waits_s[number] for number in sorted(waits_s)]


def step_cost(live: Live, count: int = 400) -> tuple[int, float]:
    """Requests lost of `count`, and CPU milliseconds of the engine for each of its steps."""
    children = psutil.Process(live.pid).children()
    engine = max(children, key=lambda child: sum(child.cpu_times()[:2]))

    def now() -> tuple[float, float]:
        live.wait_until_idle()
        return sum(engine.cpu_times()[:2]), live.sample("vllm:iteration_tokens_total_count")

    cpu_s, steps = now()
    lost = count - len(asyncio.run(served(live, count, 48, 16)))
    end_s, end_steps = now()
    return lost, 1e3 * (end_s - cpu_s) / (end_steps - steps)


def compare_costs(
    live: Live, fault: str, start: Callable[[], object], end: Callable[[], object], rounds: int
) -> None:
    """Print the cost of a step with the fault, beside that in turns without it."""
    costs: dict[bool, list[tuple[int, float]]] = {False: [], True: []}
    step_cost(live)
    for number in range(2 * rounds):
        (end, start)[number % 2]()
        costs[bool(number % 2)].append(step_cost(live))
    end()
    ms = {is_on: statistics.median(cost for _, cost in each) for is_on, each in costs.items()}
    row = {"fault": fault, "lost": sum(lost for lost, _ in costs[True]), "ms_per_step": ms[True]}
    row |= {"ratio": ms[True] / ms[False], "steps": [round(cost, 3) for _, cost in costs[True]]}
    row["dropped"] = live.sample("lengthwise_telemetry_dropped_total")
    row["lines"] = (live.timeline.parent / "log").read_text().count("some are dropped")
    print(json.dumps(row), flush=True)


def faults(rounds: int = 6) -> None:
    """Print what it costs that a disk is full, or that a pipe is read by nobody."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as ended:
        small, pipe = Path(name) / "small", Path(name) / "pipe.jsonl"
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", small], check=True)
        ended.callback(lambda: subprocess.run(["umount", "-l", small], check=True))

        def fill() -> None:
            with suppress(OSError), (small / "filler").open("wb", 0) as filler:
                while True:
                    filler.write(b"x" * 4096)

        folders = {"LENGTHWISE_FOLDER": small / "ours", "PROMETHEUS_MULTIPROC_DIR": small / "vllms"}
        for folder in folders.values():
            folder.mkdir()
        with patch.dict(os.environ, {name: str(folder) for name, folder in folders.items()}):
            own = [f"--timeline={small}/t.jsonl"]
            with serving(Path(name) / "full", "", own, VLLM) as live:
                free = partial((small / "filler").unlink, missing_ok=True)
                compare_costs(live, "full disk", fill, free, rounds)
                (small / "t.jsonl").unlink()
                shutil.rmtree(small / "ours")
                compare_costs(live, "removed", int, int, rounds)
        os.mkfifo(pipe)
        reader, reads = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), threading.Event()
        reads.set()

        def read() -> None:
            while reads.wait():
                with suppress(BlockingIOError):
                    os.read(reader, 1 << 16)
                time.sleep(0.01)

        threading.Thread(target=read, daemon=True).start()
        with serving(Path(name) / "pipe", "", [f"--timeline={pipe}"], VLLM) as live:
            compare_costs(live, "stopped pipe", reads.clear, reads.set, rounds)
            reads.clear()
            step_cost(live, 3000)


def outage(rounds: int = 3) -> None:
    """Print the longest wait in each state of the scorer, over that in order of arrival."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as ended:
        (token := Path(name) / "token").write_text("sk-1\n")
        scorer = ScoringProcess(write_tiny_bundle(Path(name) / "bundle").path)
        ended.callback(scorer.kill)
        ours = ended.enter_context(serving(Path(name) / "ours", scorer.address, [], VLLM))
        plain = ended.enter_context(serving(Path(name) / "plain", "", ["--policy=fcfs"], VLLM))
        for state in ("here", "dead", "refusing", "hung", "back again"):
            if state != "here":
                scorer.kill()
            if state in ("refusing", "hung", "back again"):
                scorer.start(*[f"--token-file={token}"] * (state == "refusing"))
            if state == "hung":
                scorer.process.send_signal(signal.SIGSTOP)
            for count in (1, 8, 700):
                longest_s: dict[Live, list[float]] = {ours: [], plain: []}
                before, overtaken = ours.outcomes(), 0
                for live in [ours, plain] * rounds:
                    waits_s = asyncio.run(served(live, count, count, 8))
                    assert len(waits_s) == count
                    longest_s[live].append(round(max(waits_s), 3))
                    if live is ours:
                        overtaken = max(overtaken, most_overtaken(ours, count))
                row = {"scorer": state, "open": count, "outcomes": ours.outcomes_since(before)}
                ratio = statistics.median(longest_s[ours]) / statistics.median(longest_s[plain])
                row |= {"most_overtaken": overtaken, "longest_wait_ratio": round(ratio, 3)}
                print(json.dumps(row), flush=True)


def most_overtaken(live: Live, count: int) -> int:
    """Later arrivals that started before a request, at most, among the newest `count` finished."""
    live.wait_until_idle()
    live.wait_for_timeline()
    timeline = read_timeline(live.timeline)
    started_s = timeline.scheduled_s[-count:]  # by arrival
    return int(np.triu(started_s[:, None] > started_s).sum(axis=1).max())


def ends(rounds: int = 20) -> None:
    """Print how long the server runs after SIGTERM at random moments under load."""

    async def main(live: Live) -> float:
        load = asyncio.create_task(served(live, 10_000, 48, 150))
        await asyncio.sleep(random.uniform(0, 6))
        server, begun_s = psutil.Process(live.pid), time.monotonic()
        server.terminate()
        await asyncio.to_thread(server.wait, 300)
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        return time.monotonic() - begun_s

    took_s = []
    for _ in range(rounds):
        with (
            tempfile.TemporaryDirectory() as name,
            serving(Path(name) / "s", "", [], VLLM) as live,
        ):
            took_s.append(round(asyncio.run(main(live)), 2))
    print(json.dumps({"ends_after_s": took_s, "longest": max(took_s)}), flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    for part in (faults, outage, ends):
        if given[:1] in ([], [part.__name__]):
            part(*map(int, given[1:]))
