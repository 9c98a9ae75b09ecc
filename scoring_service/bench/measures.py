"""One function per figure. Ratios are of CPU time, peers in turn, the median over rounds."""

from __future__ import annotations

import os
import shutil
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from tokenizers import Tokenizer

from scoring_service.bench.load import Load, Outcomes, closed_loop, open_loop
from scoring_service.bench.peers import Peer, ours
from scoring_service.bench.processes import cpu_s, free_port, rss_bytes
from scoring_service.bench.workload import PromptMaker
from scoring_service.bundle import ModelBundle
from scoring_service.client import Score, ScoringClient
from scoring_service.ranker.model import RankerModel
from scoring_service.server.time_slices import ask_for_short_slices
from scoring_service.service.batching import Call, Job, MicroBatcher

BATCH: Final = 32
NUM_CLIENTS: Final = 16
DEADLINE_S: Final = 0.1
"""Of the requests of the overload, seconds."""
_OVERLOADS: Final = 5
"""Slices of overload, with a slice of `_CAPACITY_PROMPTS` at capacity before and after each."""
_CAPACITY_PROMPTS: Final = 400


def offline(model: RankerModel, prompts: Sequence[str], num_threads: int) -> Load:
    """The bare runtime: tokenized prompts, one per run, on `num_threads` threads."""
    ids = {p: t.ids for p, t in zip(prompts, model.tokenizer.tokenize(prompts), strict=True)}
    asks = [lambda prompt: model.score([ids[prompt]])] * num_threads
    return closed_loop(os.getpid(), asks, prompts)


def score_bare(model: RankerModel, prompt: str) -> None:
    """Tokenize and run one prompt: the least that a service must do."""
    model.score([model.tokenizer.tokenize([prompt])[0].ids])


def offline_cpu_ms(model: RankerModel, prompts: Sequence[str]) -> float:
    """CPU per prompt of the bare runtime with tokenization, one after the other, milliseconds."""
    started_s = time.process_time()
    for prompt in prompts:
        score_bare(model, prompt)
    return (time.process_time() - started_s) / len(prompts) * 1e3


class Turns:
    """CPU per request of several peers, a short slice of each in every round, milliseconds."""

    def __init__(self) -> None:
        self._samples: dict[str, list[float]] = {}

    def add(self, name: str, cpu_ms: float) -> None:
        """One slice."""
        self._samples.setdefault(name, []).append(cpu_ms)

    def ratio(self, name: str, other: str) -> float | None:
        """Median over rounds of one peer's CPU / the other's; None if one did not take part."""
        if name not in self._samples or other not in self._samples:
            return None
        pairs = zip(self._samples[name], self._samples[other], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def medians(self) -> dict[str, float]:
        """By peer."""
        return {name: statistics.median(values) for name, values in self._samples.items()}


def cpu_in_turns(
    peers: Sequence[Peer],
    model: RankerModel,
    make: PromptMaker,
    *,
    rounds: int,
    slice_size: int,
    cores: int,
) -> Turns:
    """Every peer and the bare model: "NAME/1" with one client, "NAME/all" saturated.

    Saturated, the bare model runs on as many threads as there are cores: runs side by side share
    caches and memory, and that is no peer's doing.
    """
    turns = Turns()
    clients = {peer.name: [peer.client() for _ in range(NUM_CLIENTS)] for peer in peers}
    for _ in range(rounds):
        prompts = make.lognormal(slice_size)
        for load, num in (("1", 1), ("all", NUM_CLIENTS)):
            threads = 1 if num == 1 else cores
            turns.add(f"bare/{load}", offline(model, prompts, threads).cpu_ms)
            for peer in peers:
                asks = clients[peer.name][:num]
                turns.add(f"{peer.name}/{load}", closed_loop(peer.pid, asks, prompts).cpu_ms)
    return turns


def batch_cpu_ratio(peer: Peer, model: RankerModel, make: PromptMaker, *, rounds: int) -> float:
    """Server CPU of ScoreBatch / CPU of the offline loop with tokenization, same prompts."""
    ratios = []
    with ScoringClient(peer.target, timeout_s=60.0) as client:
        client.info()
        for _ in range(rounds):
            prompts = make.lognormal(BATCH)
            before_s = cpu_s(peer.pid)
            client.score_batch(prompts)
            served_ms = (cpu_s(peer.pid) - before_s) / BATCH * 1e3
            ratios.append(served_ms / offline_cpu_ms(model, prompts))
    return statistics.median(ratios)


def throughput_ratio(
    peer: Peer, model: RankerModel, make: PromptMaker, *, rounds: int, slice_size: int, cores: int
) -> tuple[float, float]:
    """Saturated throughput / that of the bare runtime on the cores left; and the former, per s.

    The load generator takes its share of the cores. Only on an idle machine: on a busy one the
    process with more threads gets more of it.
    """
    clients = [peer.client() for _ in range(NUM_CLIENTS)]
    ratios, rates = [], []
    for _ in range(rounds):
        prompts = make.lognormal(slice_size)
        bare = offline(model, prompts, cores)
        load = closed_loop(peer.pid, clients, prompts)
        left = 1 - load.client_cores / cores
        ratios.append(load.per_s / (bare.per_s * left))
        rates.append(load.per_s)
    return statistics.median(ratios), statistics.median(rates)


def added_latency_ms(
    peer: Peer, model: RankerModel, make: PromptMaker, num: int
) -> dict[str, float | None]:
    """Latency of one client's calls - tokenize and run of the same prompt, milliseconds.

    Beside it an `Info` call, which needs no model: the round trip on this machine.
    """
    added, empty = [], []
    ask = peer.client()
    with ScoringClient(peer.target, timeout_s=60.0) as client:
        for prompt in make.lognormal(num):
            begun_s = time.perf_counter()
            score_bare(model, prompt)
            bare_s = time.perf_counter() - begun_s
            begun_s = time.perf_counter()
            ask(prompt)
            added.append(time.perf_counter() - begun_s - bare_s)
            score_bare(model, prompt)
            begun_s = time.perf_counter()
            client.info()
            empty.append(time.perf_counter() - begun_s)
    return {
        "p50": _percentile_ms(added, 50),
        "p99": _percentile_ms(added, 99),
        "info_p50": _percentile_ms(empty, 50),
        "info_p99": _percentile_ms(empty, 99),
    }


def batching_gain(model: RankerModel, make: PromptMaker, rounds: int) -> dict[str, float]:
    """CPU one by one / CPU through the batcher, for mixed lengths and for at most 16 tokens."""
    batcher = MicroBatcher(num_runners=1)

    def gain(prompts: Sequence[str]) -> float:
        ids = [prompt.ids for prompt in model.tokenizer.tokenize(prompts)]
        started_s = time.process_time()
        for prompt in ids:
            model.score([prompt])
        alone_s = time.process_time() - started_s
        call = Call(time.monotonic() + 600)
        started_s = time.process_time()
        scored = threading.Event()
        batcher.submit([Job(model, prompt, call) for prompt in ids], call, scored.set)
        scored.wait()
        return alone_s / (time.process_time() - started_s)

    return {
        "mixed": statistics.median(gain(make.lognormal(BATCH)) for _ in range(rounds)),
        "short": statistics.median(gain(make.uniform(BATCH, 6, 16)) for _ in range(rounds)),
    }


def huge_prompt_ms(model: RankerModel, tokenizer: Tokenizer, make: PromptMaker) -> float:
    """CPU to tokenize 20,000 characters, milliseconds. Raises AssertionError if an id differs."""
    prompt = make.of_characters(20_000)
    tokenizer.no_padding()
    tokenizer.enable_truncation(model.tokenizer.max_tokens)
    (ours_,) = model.tokenizer.tokenize([prompt])
    assert list(ours_.ids) == tokenizer.encode(prompt).ids, "the prefix changes the ids"

    def once() -> float:
        started_s = time.process_time()
        model.tokenizer.tokenize([prompt])
        return time.process_time() - started_s

    return statistics.median(once() for _ in range(51)) * 1e3


def batch_invariance(target: str, make: PromptMaker, num: int) -> float:
    """Largest difference between a prompt's score alone and in a batch of the service."""
    prompts = make.lognormal(num)
    with ScoringClient(target, timeout_s=60.0) as client:
        alone = [client.score(prompt).value for prompt in prompts]
        together = [
            score.value for score in client.score_batch(prompts) if isinstance(score, Score)
        ]
    return max(abs(a - b) for a, b in zip(alone, together, strict=True))


def overload(
    bundle: Path, precision: str, make: PromptMaker, seconds: float, cores: int
) -> dict[str, float | None]:
    """Twice the capacity for some seconds: goodput, refusals, and whether late work was done.

    Capacity is measured right before and right after each slice of overload, since a machine's
    speed drifts; goodput is the median over the slices. The load generator takes its share of the
    cores, more of it the more it sends: goodput on the cores left stands beside it, as in
    `throughput_ratio`, and the latency of `Info` calls at the same moments beside the refusals.
    """
    metrics = f"127.0.0.1:{free_port()}"
    ask_for_short_slices()  # For the load generator, which shares the machine.
    with ours(bundle, precision, "--metrics_address", metrics) as peer:
        clients = [peer.client() for _ in range(NUM_CLIENTS)]
        closed_loop(peer.pid, clients, make.lognormal(100))
        slices, idle_calls_s = list[Outcomes](), list[float]()
        capacities = [closed_loop(peer.pid, clients, make.lognormal(_CAPACITY_PROMPTS))]
        for number in range(_OVERLOADS):
            per_s = 2 * capacities[-1].per_s
            prompts = make.lognormal(int(per_s * seconds / _OVERLOADS))
            with _asked_now_and_then(peer.target) as latencies_s:
                result = open_loop(
                    peer.target, prompts, per_s=per_s, timeout_s=DEADLINE_S, seed=number
                )
            slices.append(result)
            idle_calls_s += latencies_s
            capacities.append(closed_loop(peer.pid, clients, make.lognormal(_CAPACITY_PROMPTS)))
        late = scrape(metrics)["scoring_begun_late_prompts_total"]
    refused_s = [latency_s for result in slices for latency_s in result.refused_s]
    answered_s = [latency_s for result in slices for latency_s in result.answered_s]
    sent, wall_s = sum(each.sent for each in slices), sum(each.wall_s for each in slices)
    return {
        **_goodput(capacities, slices, cores),
        "offered_fraction": sent / wall_s / statistics.mean(load.per_s for load in capacities),
        "answered_p99_ms": _percentile_ms(answered_s, 99),
        "reject_p99_ms": _percentile_ms(refused_s, 99),
        "reject_p50_ms": _percentile_ms(refused_s, 50),
        "info_p99_ms": _percentile_ms(idle_calls_s, 99),
        "info_p50_ms": _percentile_ms(idle_calls_s, 50),
        "client_cores": sum(each.client_cpu_s for each in slices) / wall_s,
        "deadline_ms": DEADLINE_S * 1e3,
        "timed_out_fraction": sum(sum(each.failed.values()) for each in slices) / sent,
        "expired_computed": late,
    }


def _goodput(
    capacities: Sequence[Load], slices: Sequence[Outcomes], cores: int
) -> dict[str, float]:
    """Goodput of each slice / the capacities around it; the median over the slices."""
    goodputs, of_cores_left = [], []
    for before, result, after in zip(capacities, slices, capacities[1:], strict=False):
        capacity_per_s = (before.per_s + after.per_s) / 2
        cores_then = cores - (before.client_cores + after.client_cores) / 2
        cores_now = cores - result.client_cpu_s / result.landed_s
        goodputs.append(len(result.answered_s) / result.landed_s / capacity_per_s)
        of_cores_left.append(goodputs[-1] * cores_then / cores_now)
    return {
        "goodput_fraction": statistics.median(goodputs),
        "goodput_fraction_of_cores_left": statistics.median(of_cores_left),
    }


@contextmanager
def _asked_now_and_then(target: str) -> Iterator[list[float]]:
    """Latencies of `Info` calls made one after the other during the block, seconds."""
    latencies_s: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        with ScoringClient(target, timeout_s=10.0) as client:
            client.info()
            while not stop.wait(0.02):
                begun_s = time.perf_counter()
                client.info()
                latencies_s.append(time.perf_counter() - begun_s)

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        try:
            yield latencies_s
        finally:
            stop.set()
            asked.result()


def memory(bundle: Path, precision: str, make: PromptMaker, num_shapes: int) -> dict[str, float]:
    """Resident memory after warm-up, and its growth over random lengths and batch sizes."""
    with ours(bundle, precision) as peer, ScoringClient(peer.target, timeout_s=60.0) as client:

        def run(num: int) -> None:
            prompts = make.uniform(num, 4, 128)
            for start in range(0, num, BATCH):
                client.score_batch(prompts[start : start + BATCH])

        run(10 * BATCH)
        before = rss_bytes(peer.pid)
        run(num_shapes)
        return {"rss_mb": before / 2**20, "growth_fraction": rss_bytes(peer.pid) / before - 1}


def cold_start_s(bundle: Path, precision: str, rounds: int) -> float:
    """From the start of the process to READY, model timed and all; the median."""

    def once() -> float:
        started_s = time.perf_counter()
        with ours(bundle, precision):
            return time.perf_counter() - started_s

    return statistics.median(once() for _ in range(rounds))


def reload(
    bundle: Path, precision: str, make: PromptMaker, folder: Path, seconds: float
) -> dict[str, float | None]:
    """Failed calls while a new revision is loaded, and p99 around the swap / before it."""
    watched = folder / "bundle"
    _write_revision(bundle, watched, "first")
    latencies: list[tuple[float, float]] = []
    failed: list[str] = []
    stop = threading.Event()

    def client(target: str, prompts: Iterator[str]) -> None:
        with ScoringClient(target, timeout_s=10.0) as connection:
            for prompt in prompts:
                if stop.is_set():
                    return
                begun_s = time.perf_counter()
                (score,) = connection.score_batch([prompt])
                latencies.append((begun_s, time.perf_counter() - begun_s))
                if not isinstance(score, Score):
                    failed.append(str(score))

    with (
        ours(watched, precision, "--reload_poll_s", "0.2") as peer,
        ThreadPoolExecutor(2) as pool,
        ScoringClient(peer.target, timeout_s=10.0) as observer,
    ):
        for _ in range(2):
            pool.submit(client, peer.target, iter(make.lognormal(100_000 // 5)))
        first = observer.info().revision
        time.sleep(seconds)
        pushed_s = time.perf_counter()
        _write_revision(bundle, watched, "second")
        swapped = _wait_for(lambda: observer.info().revision != first, 30.0)
        ended_s = time.perf_counter() + 0.5
        time.sleep(0.5)
        stop.set()
    steady = [took for begun, took in latencies if begun < pushed_s]
    around = [took for begun, took in latencies if pushed_s <= begun < ended_s]
    return {
        "failed": float(len(failed) + (not swapped)),
        "p99_ratio": _ratio(_percentile_ms(around, 99), _percentile_ms(steady, 99)),
        "requests": float(len(latencies)),
    }


def scrape(address: str) -> dict[str, float]:
    """The metrics of a server by name and labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    values = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in values}


def _write_revision(bundle: Path, target: Path, note: str) -> None:
    loaded = ModelBundle.load(bundle)

    def fill(work: Path) -> None:
        for name in loaded.manifest.files:
            shutil.copy(bundle / name, work / name)
        (work / "note.txt").write_text(note)

    ModelBundle.write(target, loaded.manifest, fill)


def _wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.02)
    return False


def _percentile_ms(seconds: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(seconds, percent) * 1e3) if len(seconds) else None


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b
