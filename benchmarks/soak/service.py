"""All attacks of `tests/scoring_service/attacks.py` at once, beside honest callers and new bundles.

    make soak                              ten minutes
    python -m benchmarks soak-service --seconds 30
    python -m benchmarks soak-service --table    each attack alone, then all together

The honest callers are a process of their own, and the attackers' threads have a low priority: they
stand for other machines. Exit status 1: an honest call was lost, health was not answered, or memory
grew by more than `MAX_GROWTH` after the first tenth. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lengthwise.child_processes import free_port
from tests.conftest import write_tiny_bundle
from tests.scoring_service import attacks
from tests.scoring_service.attacks import ATTACKS, Honest, honest_callers
from tests.scoring_service.waiting import rss_bytes

ROOT = Path(__file__).resolve().parents[2]
MAX_GROWTH = 0.1
"""Of the peak of resident memory, which fluctuates with the size of the prompts under way; the
summary has the median of each tenth of the time, too."""
IN_TIME_S = 0.1
"""A score later than that is of no use to a scheduler."""
_SWAP_S = 5.0
_ATTACK_S = 3.0
TABLE: dict[str, Callable[[Service, float], object]] = {
    "none": lambda service, seconds: time.sleep(seconds),
    "90 stalled calls": lambda s, t: attacks.stalled_calls(s.target, t, calls=90),
    "500 half scrapes": lambda s, t: attacks.half_scrapes(s.metrics, t),
    "300 silent connections": lambda s, t: attacks.silent_connections(s.target, t),
    "4 clients with heavy texts": lambda s, t: attacks.heavy_texts(s.target, t),
    "2 callers with full batches": lambda s, t: attacks.batches(s.target, t),
    "4 connections of refused calls": lambda s, t: attacks.refused_calls(s.target, t),
    "520 idle connections of one address": lambda s, t: attacks.idle_connections(s.target, t),
    "8 connections that read no answer": lambda s, t: attacks.slow_readers(s.target, t),
}
"""Attacks by name; `--table` measures what honest callers see of each."""


class Service(NamedTuple):
    """A service under attack."""

    process: subprocess.Popen[str]
    target: str
    metrics: str
    bundle: Path


@contextmanager
def _service() -> Iterator[Service]:
    metrics = f"127.0.0.1:{free_port()}"
    options = ["--metrics-address", metrics, "--drain-grace-s", "2"]
    # Filled within a minute: 65,536 results, the default, take 27 MB and longer than the soak.
    options += ["--cache-entries", "1000"]
    with tempfile.TemporaryDirectory() as scratch:
        bundle = write_tiny_bundle(Path(scratch) / "bundle")
        options += ["--report-log", f"{scratch}/log.jsonl"]
        with attacks.serving(bundle, *options) as (process, target):
            yield Service(process, target, metrics, bundle.path)


@contextmanager
def _honest(target: str, timeout_s: float) -> Iterator[Honest]:
    """Honest callers in a process of their own; filled in when the block has ended."""
    command = [sys.executable, "-m", "benchmarks.soak.service", "--watch", target]
    command += ["--timeout-s", str(timeout_s)]
    seen = Honest()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()  # They ask now.
            yield seen
            said, _ = process.communicate("", 120)
            seen.__dict__.update(json.loads(said))
        finally:
            process.kill()


def _watch(target: str, timeout_s: float) -> None:
    with honest_callers(target, timeout_s=timeout_s) as honest:
        print("asking", flush=True)
        sys.stdin.read()
    print(json.dumps(vars(honest)))


def soak(seconds: float, *, timeout_s: float = 10.0, seed: int = 0) -> dict[str, Any]:
    """Run a service of its own under attack for so long; returns what honest callers met."""
    with _service() as service:
        with _honest(service.target, timeout_s) as honest:
            sizes = _attack(service, seconds, seed)
        service.process.send_signal(signal.SIGTERM)
        begun_s = time.monotonic()
        status = service.process.wait(60)
        return _summary(honest, sizes, status, time.monotonic() - begun_s)


def table(seconds: float, *, timeout_s: float = 10.0) -> Iterator[dict[str, Any]]:
    """Figures of honest callers during each attack alone, and during all at once."""
    with _service() as service:
        for name, attack in (TABLE | {"all of these": _all_at_once}).items():
            with _honest(service.target, timeout_s) as honest, _elsewhere(1) as pool:
                pool.submit(attack, service, seconds).result(300)
            yield {"attack": name, **_figures(honest)}


def _elsewhere(num_threads: int) -> ThreadPoolExecutor:
    """Threads of low priority, which Linux keeps for each thread and those that it starts."""
    return ThreadPoolExecutor(num_threads, "attack", initializer=partial(os.nice, 10))


def _all_at_once(service: Service, seconds: float) -> None:
    with _elsewhere(len(TABLE)) as pool:
        for one in [pool.submit(attack, service, seconds) for attack in TABLE.values()]:
            one.result(300)


def _attack(service: Service, seconds: float, seed: int) -> list[int]:
    """Two attacks at a time, each another one every few seconds; returns sizes in memory, bytes."""
    stopped, sizes = threading.Event(), list[int]()
    half_scrapes = partial(attacks.half_scrapes, service.metrics)
    ways = [partial(attack, service.target) for attack in ATTACKS.values()] + [half_scrapes]

    def mix(number: int) -> None:
        dice = random.Random(f"{seed} {number}")
        while not stopped.is_set():
            dice.choice(ways)(_ATTACK_S)

    def swap() -> None:
        shift = 0.0
        while not stopped.wait(_SWAP_S):
            shift += 1.0
            write_tiny_bundle(service.bundle, shift=shift)

    with _elsewhere(3) as pool:
        running = [pool.submit(mix, 0), pool.submit(mix, 1), pool.submit(swap)]
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s and not any(one.done() for one in running):
            sizes.append(rss_bytes(service.process.pid))
            time.sleep(0.5)
        stopped.set()
        for one in running:
            one.result(300)
    return sizes


def _summary(honest: Honest, sizes: list[int], status: int, end_s: float) -> dict[str, Any]:
    warm = sizes[len(sizes) // 10 :]
    half = len(warm) // 2
    first, last = (max(part, default=0) for part in (warm[:half], warm[half:]))
    parts = np.array_split(sizes, min(10, len(sizes)))  # A busy machine leaves few samples.
    return {
        "scored": honest.scored,
        "errors": honest.errors[:5],
        **_figures(honest),
        "peak_mb": round(max(sizes) / 1e6, 1),
        "median_mb": [round(float(np.median(part)) / 1e6, 1) for part in parts],
        "growth": round(last / first - 1, 3) if first else 0.0,
        "end_s": round(end_s, 2),
        "exit_status": status,
    }


def _figures(honest: Honest) -> dict[str, Any]:
    in_time = sum(score_s <= IN_TIME_S for score_s in honest.score_s)
    return {
        "health_ms": _percentiles_ms(honest.health_s),
        "score_ms": _percentiles_ms(honest.score_s),
        "goodput": round(in_time / max(honest.scored + honest.failed, 1), 4),
        "failed": honest.failed,
    }


def _percentiles_ms(seconds: list[float]) -> dict[str, float]:
    at = {"p50": 50, "p99": 99, "max": 100}
    return {k: round(float(np.percentile(seconds, q)) * 1e3, 1) for k, q in at.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--watch", metavar="TARGET")
    parser.add_argument("--timeout-s", type=float, default=10.0)
    options = parser.parse_args()
    if options.watch:
        _watch(options.watch, options.timeout_s)
        return 0
    if options.table:
        rows = []
        for row in table(options.seconds or 5.0):
            rows.append(row)
            print(json.dumps(row), flush=True)
        return int(any(row["failed"] for row in rows))
    found = soak(options.seconds or 600.0)
    print(json.dumps(found))
    return int(bool(found["failed"] or found["exit_status"] or found["growth"] > MAX_GROWTH))


if __name__ == "__main__":
    sys.exit(main())
