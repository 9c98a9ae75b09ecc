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
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from lengthwise.child_processes import free_port  # noqa: E402
from tests.conftest import write_tiny_bundle  # noqa: E402
from tests.scheduler_adapters.commands.test_serve_vllm_live import Live, serving  # noqa: E402

SEATS = 8
VLLM = ["--max-model-len=1024", f"--max-num-seqs={SEATS}"]
NO_SCORER = ["--start-without-scorer=true"]


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


def step_cost(live: Live, count: int) -> dict[str, float]:
    """Requests lost of `count`, and the engine's CPU time for each of its steps."""
    children = psutil.Process(live.pid).children()
    engine = max(children, key=lambda child: sum(child.cpu_times()[:2]))

    def now() -> tuple[float, float]:
        live.wait_until_idle()
        return sum(engine.cpu_times()[:2]), live.sample("vllm:iteration_tokens_total_count")

    cpu_s, steps = now()
    lost = count - len(asyncio.run(served(live, count, 48, 16)))
    end_s, end_steps = now()
    return {"lost": lost, "ms_per_step": round(1e3 * (end_s - cpu_s) / (end_steps - steps), 4)}


def faults(rounds: int = 6) -> None:
    """Print what each fault costs, beside the same server without it."""
    with ExitStack() as ended, tempfile.TemporaryDirectory() as name:
        small, pipe = Path(name) / "small", Path(name) / "pipe.jsonl"
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small], check=True)
        ended.callback(subprocess.run, ["umount", "-l", small])
        (small / "shared").mkdir()
        own = [f"--timeline={small}/t.jsonl"]
        environment = dict.fromkeys(("LENGTHWISE_FOLDER", "PROMETHEUS_MULTIPROC_DIR"))
        os.environ.update(dict.fromkeys(environment, str(small / "shared")))
        with serving(Path(name) / "a", "", own, VLLM) as live:
            step_cost(live, 200)
            costs: dict[str, list[dict[str, float]]] = {"none": [], "full": [], "removed": []}
            for _ in range(rounds):
                costs["none"].append(step_cost(live, 400))
                with suppress(OSError), (small / "filler").open("wb", 0) as filler:
                    while True:
                        filler.write(b"x" * 4096)
                costs["full"].append(step_cost(live, 400))
                (small / "filler").unlink()
            (small / "t.jsonl").unlink()
            shutil.rmtree(small / "shared")
            costs["removed"] += [step_cost(live, 400) for _ in range(rounds)]
            dropped = live.sample("lengthwise_dropped_reports")
            log = (Path(name) / "a" / "log").read_text()
            print_costs(costs, lines=log.count("some are dropped"), dropped_reports=dropped)
        for variable in environment:
            del os.environ[variable]
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        reads = threading.Event()
        reads.set()

        def read() -> None:
            while reads.wait():
                with suppress(BlockingIOError):
                    os.read(reader, 1 << 16)
                time.sleep(0.01)

        threading.Thread(target=read, daemon=True).start()
        with serving(Path(name) / "b", "", [f"--timeline={pipe}"], VLLM) as live:
            step_cost(live, 200)
            costs = {"none": [], "stopped pipe": []}
            for _ in range(rounds):
                reads.set()
                costs["none"].append(step_cost(live, 400))
                reads.clear()
                costs["stopped pipe"].append(step_cost(live, 400))
            step_cost(live, 2000)
            log = (Path(name) / "b" / "log").read_text()
            dropped = live.sample("lengthwise_telemetry_dropped_total")
            print_costs(costs, lines=log.count("some are dropped"), dropped_lines=dropped)


def print_costs(costs: dict[str, list[dict[str, float]]], **more: float) -> None:
    for fault, each in costs.items():
        steps = [one["ms_per_step"] for one in each]
        base = statistics.median(one["ms_per_step"] for one in costs["none"])
        row = {"fault": fault, "lost": sum(one["lost"] for one in each), "ms_per_step": steps}
        print(json.dumps(row | {"ratio": round(statistics.median(steps) / base, 3)}), flush=True)
    print(json.dumps(more), flush=True)


@contextmanager
def scorer(state: str, bundle: Path, address: str) -> Any:
    """A scoring service in that state."""
    if state == "dead":
        yield
        return
    command = [sys.executable, "-m", "scoring_service", "serve"]
    command += ["--bundle", str(bundle), "--address", address]
    if state == "refusing":
        token = bundle.parent / "token"
        token.write_text("sk-1\n")
        command += ["--token-file", str(token)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "serving" in process.stdout.readline()
    if state == "hung":
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def outage(rounds: int = 3) -> None:
    """Print the longest wait in each state over that in order of arrival, and overtaken places."""
    with tempfile.TemporaryDirectory() as name:
        bundle = write_tiny_bundle(Path(name) / "bundle")
        address = f"127.0.0.1:{free_port()}"
        with (
            serving(Path(name) / "ours", address, NO_SCORER, VLLM) as ours,
            serving(Path(name) / "plain", "", ["--policy=fcfs"], VLLM) as plain,
        ):
            for live in (ours, plain):
                asyncio.run(served(live, 100, 100, 8))
            for state in ("dead", "refusing", "hung", "back again"):
                for count in (1, 8, 700):
                    with scorer(state, bundle.path, address):
                        row = compared(state, count, ours, plain, rounds)
                        print(json.dumps(row), flush=True)


def compared(state: str, count: int, ours: Live, plain: Live, rounds: int) -> dict[str, Any]:
    longest: dict[str, list[float]] = {"ours": [], "plain": []}
    before = ours.outcomes()
    for number in range(2 * rounds):
        name, live = (("ours", ours), ("plain", plain))[number % 2]
        waits_s = asyncio.run(served(live, count, count, 8))
        assert len(waits_s) == count
        longest[name].append(round(max(waits_s), 3))
    ratio = statistics.median(longest["ours"]) / statistics.median(longest["plain"])
    outcomes = {key: number for key, number in ours.outcomes_since(before).items() if number}
    return {"state": state, "open": count, "ratio": round(ratio, 3), **longest, "as": outcomes}


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
            print(json.dumps({"ends_after_s": took_s[-1]}), flush=True)
    print(json.dumps({"longest_end_s": max(took_s)}), flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    for part in (faults, outage, ends):
        if given[:1] in ([], [part.__name__]):
            part(*map(int, given[1:]))
