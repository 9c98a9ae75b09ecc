"""`serve-vllm` under load while its figures cannot be kept, while its scorer is away, and its end.

    python -m benchmarks soak-engine faults     full disk (mounts a tmpfs: root), all removed
    python -m benchmarks soak-engine steps      CPU time of a step: full disk, stopped pipe
    python -m benchmarks soak-engine outage     scorer dead, refusing, hung, back again; order
    python -m benchmarks soak-engine ends 20    SIGTERM under load, so many times

Each line is one JSON object. Without a name all run, beside a tiny model on the CPU.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import aiohttp
import numpy as np
import psutil
from scipy.stats import bootstrap

from scheduler_adapters.engines.engine_metrics import observers_from_environment
from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER
from scheduler_adapters.planner.request_tracker import RequestTracker
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.timeline.live_log import VARIABLE
from scheduler_adapters.timeline.timeline import read_timeline
from scheduler_adapters.views import RequestView
from tests.conftest import write_tiny_bundle
from tests.scheduler_adapters.commands.vllm_server import (
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


def faults(count: int = 400) -> None:
    """Print the requests lost while a disk is full or read-only, a pipe is stopped, all is removed.

    The stopped pipe is the timeline of a second server, whose shared folder is read-only.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as ended:
        for folder, options in (("small", "size=8m"), ("fixed", "ro")):
            (at := Path(name) / folder).mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", at], check=True)
            ended.callback(lambda at=at: subprocess.run(["umount", "-l", at], check=True))
        small, fixed, pipe = (Path(name) / each for each in ("small", "fixed", "pipe.jsonl"))
        os.mkfifo(pipe)
        ended.callback(os.close, os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
        folders = {"LENGTHWISE_FOLDER": small / "ours", "PROMETHEUS_MULTIPROC_DIR": small / "vllms"}
        for folder in folders.values():
            folder.mkdir()
        with patch.dict(os.environ, {n: str(f) for n, f in folders.items()}):
            own = [f"--timeline={small}/t.jsonl"]
            with serving(Path(name) / "full", "", own, VLLM) as live:
                print_lost(live, "none", count)
                with suppress(OSError), (small / "filler").open("wb", 0) as filler:
                    while True:
                        filler.write(b"x" * 4096)
                print_lost(live, "full disk", count)
                (small / "t.jsonl").unlink()
                shutil.rmtree(folders["LENGTHWISE_FOLDER"])
                print_lost(live, "removed", count)
        own = [f"--timeline={pipe}"]
        ended.enter_context(patch.dict(os.environ, {"LENGTHWISE_FOLDER": str(fixed)}))
        live = ended.enter_context(serving(Path(name) / "pipe", "", own, VLLM))
        print_lost(live, "stopped pipe, read-only folder", 3 * count)


def print_lost(live: Live, fault: str, count: int) -> None:
    """Print how many of `count` requests are lost, and what is counted and logged."""
    row = {"fault": fault, "lost": count - len(asyncio.run(served(live, count, 48, 16)))}
    live.wait_until_idle()
    for counter in ("telemetry_dropped_total", "dropped_reports"):
        row[counter] = live.sample(f"lengthwise_{counter}")
    log = (live.timeline.parent / "log").read_text()
    row |= {"lines": log.count("some are dropped"), "warned": log.count("no metrics of the engine")}
    print(json.dumps(row), flush=True)


def steps(rounds: int = 12, residents: int = 256) -> None:
    """Print the CPU time that figures and timeline take of a step, without an engine."""
    with tempfile.TemporaryDirectory() as name:
        loops = {}
        for fault in ("none", "full disk", "stopped pipe", "removed"):
            (folder := Path(name) / fault).mkdir()
            path = folder / "t.jsonl"
            if fault == "full disk":
                path.symlink_to("/dev/full")
            elif fault == "stopped pipe":
                os.mkfifo(path)
                os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            with patch.dict(os.environ, {SHARED_FOLDER: str(folder), VARIABLE: str(path)}):
                loops[fault] = StepLoop(residents)
            if fault == "removed":
                path.unlink()
        costs: dict[str, list[float]] = {fault: [] for fault in loops}
        for _ in range(rounds + 1):
            for fault, loop in loops.items():
                begun_s = time.thread_time()
                for _ in range(400):
                    loop.step()
                costs[fault].append((time.thread_time() - begun_s) / 400)
        for fault, each in costs.items():
            pairs = zip(each[1:], costs["none"][1:], strict=True)  # the first ones warm up
            row = {"fault": fault, "us_per_step": round(1e6 * statistics.median(each), 1)}
            row["ratio"] = round(statistics.median(cost / base for cost, base in pairs), 3)
            print(json.dumps(row), flush=True)


class StepLoop:
    """The observers of an engine whose residents each get a token in every step."""

    def __init__(self, residents: int) -> None:
        self.now_s, self.numbers = 1.0, itertools.count()
        config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_rank=0))
        self.scheduler = SimpleNamespace(
            vllm_config=config, lengthwise_tracker=RequestTracker(FCFS(), clock=lambda: self.now_s),
            _lengthwise_planner=None, running=[], waiting=[], _lengthwise_holders=[],
            connector=None, kv_cache_manager=SimpleNamespace(usage=0.5),
        )  # fmt: skip
        self.observers = observers_from_environment(self.scheduler, thinks=False)
        now = self.scheduler.lengthwise_tracker.clock
        self.scheduler.lengthwise_tracker = RequestTracker(FCFS(), now, self.observers)
        self.outputs = [(7,)] * residents
        for _ in range(residents):
            self.admit()

    def admit(self) -> None:
        view = RequestView(f"{(number := next(self.numbers))}", number, self.now_s, 16)
        for observer in self.observers:
            observer.queued(view, self.now_s)
            observer.admitted(view, self.now_s)
        request = SimpleNamespace(request_id=view.request_id, view=view, left=20 + number % 200)
        request.num_computed_tokens = request.num_tokens = 16
        self.scheduler.running.append(request)

    def step(self) -> None:
        self.now_s += 0.02
        running = self.scheduler.running
        views = [request.view for request in running]
        self.scheduler.lengthwise_tracker.events.emitted(
            views, self.outputs, [1] * len(views), self.now_s
        )
        for request in running:
            request.left -= 1
        ended = [request for request in running if not request.left]
        self.scheduler.running = [request for request in running if request.left]
        for observer in self.observers:
            for request in ended:
                observer.finished(request.view, self.now_s)
            observer.stepped(self.now_s)
        for _ in ended:
            self.admit()


def outage(rounds: int = 5) -> None:
    """Print the longest wait in each state of the scorer, over that in order of arrival.

    Bursts are in turn with a server without scores; the ratio is the pairs' median, with its 95%
    interval by the bootstrap. There are more bursts of a few requests, as milliseconds differ.
    The last rows have the pairs of the states in which the scorer is away.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as ended:
        (token := Path(name) / "token").write_text("sk-1\n")
        scorer = ScoringProcess(write_tiny_bundle(Path(name) / "bundle").path)
        ended.callback(scorer.kill)
        ours = ended.enter_context(serving(Path(name) / "ours", scorer.address, [], VLLM))
        plain = ended.enter_context(serving(Path(name) / "plain", "", ["--policy=fcfs"], VLLM))
        away = defaultdict[int, list[float]](list)
        for state in ("here", "dead", "refusing", "hung", "back again"):
            if state != "here":
                scorer.kill()
            if state in ("refusing", "hung", "back again"):
                scorer.start(*[f"--token-file={token}"] * (state == "refusing"))
            if state == "hung":
                scorer.process.send_signal(signal.SIGSTOP)
            for count, times in ((1, 20), (8, 20), (700, 3)):
                longest_s: dict[Live, list[float]] = {ours: [], plain: []}
                before, overtaken = ours.outcomes(), 0
                for number in range(2 * rounds * times):
                    live = (ours, plain, plain, ours)[number % 4]
                    waits_s = asyncio.run(served(live, count, count, 8))
                    assert len(waits_s) == count
                    longest_s[live].append(max(waits_s))
                    if live is ours and (count == 700 or number % times == 0):
                        overtaken = max(overtaken, most_overtaken(ours, count))
                row = {"scorer": state, "open": count, "outcomes": ours.outcomes_since(before)}
                ratios = np.divide(longest_s[ours], longest_s[plain]).tolist()
                away[count] += ratios if state in ("dead", "refusing", "hung") else []
                row |= {"most_overtaken": overtaken, "longest_wait_ratio": with_interval(ratios)}
                print(json.dumps(row), flush=True)
        for count, ratios in away.items():
            print(json.dumps({"open": count, "longest_wait_ratio": with_interval(ratios)}))


def with_interval(ratios: Sequence[float]) -> list[float]:
    """The median and its 95% interval."""
    drawn = bootstrap((ratios,), np.median, method="percentile", n_resamples=2000, random_state=0)
    return [round(float(x), 3) for x in (np.median(ratios), *drawn.confidence_interval)]


def most_overtaken(live: Live, count: int) -> int:
    """Later arrivals that started before a request, at most, among the newest `count` finished."""
    live.wait_until_idle()
    live.wait_for_timeline()
    timeline = read_timeline(live.timeline)
    started_s = timeline.scheduled_s[-count:]  # by arrival
    return int(np.triu(started_s[:, None] > started_s).sum(axis=1).max())


def ends(rounds: int = 20) -> None:
    """Print how long servers run after SIGTERM at random moments under load, at most 40 s.

    Plain vLLM, which may wait for its clients, is in turn with ours.
    """

    async def main(live: Live) -> float:
        load = asyncio.create_task(served(live, 10_000, 48, 150))
        await asyncio.sleep(random.uniform(0, 6))
        server, begun_s = psutil.Process(live.pid), time.monotonic()
        server.terminate()
        with suppress(psutil.TimeoutExpired):
            await asyncio.to_thread(server.wait, 40)
        took_s = round(time.monotonic() - begun_s, 2)
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        return took_s

    took_s: dict[str, list[float]] = {"ours": [], "plain": []}
    for side in [*took_s] * rounds:
        with tempfile.TemporaryDirectory() as name:
            own = [] if side == "ours" else None
            with serving(Path(name) / "s", "", own, VLLM) as live:
                took_s[side].append(asyncio.run(main(live)))
        print(json.dumps({"ends_after_s": took_s}), flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    for part in (faults, outage, ends, steps):
        if given[:1] in ([], [part.__name__]):
            part(*map(int, given[1:]))
