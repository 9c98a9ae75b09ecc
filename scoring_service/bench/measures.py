"""One function per figure. Ratios are of CPU time, peers in turn, the median over rounds."""

import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Self

from tokenizers import Tokenizer

from lengthwise.bundle import ModelBundle
from scoring_service.bench.load import (
    Load,
    Outcomes,
    PromptMaker,
    closed_loop,
    cpu_s,
    open_loop,
    percentile_ms,
    rss_bytes,
)
from scoring_service.bench.peers import Peer, ours
from scoring_service.client import ScoringClient
from scoring_service.ranker.model import RankerModel
from scoring_service.server.worker import use_short_slices
from scoring_service.service.batching import Call, Job, MicroBatcher

BATCH: Final = 32
NUM_CLIENTS: Final = 16
DEADLINE_S: Final = 0.1
"""Deadline of the requests of the overload, seconds."""
_OVERLOADS: Final = 5
"""Slices of overload, with a slice of `_CAPACITY_PROMPTS` at capacity before and after each."""
_CAPACITY_PROMPTS: Final = 400
_STARTS: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchConfig:
    """Sizes of the bench's measures."""

    bundle: str = "mlruns/demo/bundle"
    """Folder of the bundle to serve."""
    precision: str = "auto"
    """fp32, int8, or auto (int8 where the bundle has it)."""
    rounds: int = 9
    """Turns that each peer takes; figures are medians over them."""
    slice_size: int = 80
    """Requests of one turn with one client; turns with all clients have three times as many."""
    overload_s: float = 10.0
    """Duration of the overload, seconds."""
    num_shapes: int = 10_000
    """Prompts of random lengths over which memory may grow."""
    peer: str | None = None
    """Command that starts another server of the Open Inference Protocol, to compare with; e.g.
    "python tests/peers/naive.py BUNDLE"."""
    seed: int = 0
    """Of the prompts and arrival times."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The bundle under test, its model in this process, and prompts for it."""

    config: BenchConfig
    folder: Path
    model: RankerModel
    make: PromptMaker
    cores: int

    @classmethod
    def load(cls, config: BenchConfig) -> Self:
        """Load the bundle. Raises BundleError if there is none, or not of that precision."""
        bundle = ModelBundle.load(config.bundle)
        tokenizer = Tokenizer.from_file(str(bundle.tokenizer_path))
        return cls(
            config=config,
            folder=bundle.path,
            model=RankerModel.load(bundle, config.precision),
            make=PromptMaker(tokenizer, bundle.manifest.max_prompt_tokens, config.seed),
            cores=len(os.sched_getaffinity(0)),
        )


def offline(model: RankerModel, prompts: Sequence[str], num_threads: int) -> Load:
    """The bare runtime: tokenized prompts, one per run, on `num_threads` threads."""
    ids = {p: t.ids for p, t in zip(prompts, model.tokenizer.tokenize(prompts), strict=True)}
    asks = [lambda prompt: model.score([ids[prompt]])] * num_threads
    return closed_loop(os.getpid(), asks, prompts)


def took_s(clock: Callable[[], float], action: Callable[[], object]) -> float:
    """Seconds that an action takes on a clock: of the wall, or of a process's CPU."""
    started_s = clock()
    action()
    return clock() - started_s


def median_ratio(values: Sequence[float], others: Sequence[float]) -> float | None:
    """Median over rounds of one peer's values / another's; None if one did not take part."""
    if not values or not others:
        return None
    return statistics.median(a / b for a, b in zip(values, others, strict=True))


def loads_in_turns(subject: Subject, peers: Sequence[Peer]) -> Mapping[str, Sequence[Load]]:
    """Load of each peer in each round: "NAME/1" with one client, "NAME/all" saturated."""
    turns = defaultdict[str, list[Load]](list)
    clients = {peer.name: [peer.client() for _ in range(NUM_CLIENTS)] for peer in peers}
    size = subject.config.slice_size
    for _ in range(subject.config.rounds):
        # The bare model runs on every core: concurrent runs share caches and memory.
        for load, threads, num in (("1", 1, 1), ("all", subject.cores, NUM_CLIENTS)):
            prompts = subject.make.lognormal(size if num == 1 else 3 * size)
            turns[f"bare/{load}"].append(offline(subject.model, prompts, threads))
            for peer in peers:
                measured = closed_loop(peer.pid, clients[peer.name][:num], prompts)
                turns[f"{peer.name}/{load}"].append(measured)
    return turns


def throughput_ratio(served: Sequence[Load], bare: Sequence[Load], cores: int) -> float:
    """Saturated throughput / that of the bare runtime on the cores that the clients leave.

    Only for an idle machine: on a busy one the process with more threads gets more of it.
    """
    left = [
        other.per_s * (1 - load.client_cores / cores)
        for load, other in zip(served, bare, strict=True)
    ]
    return statistics.median(load.per_s / per_s for load, per_s in zip(served, left, strict=True))


def batch_cpu_ratio(subject: Subject, peer: Peer) -> float:
    """Server CPU of ScoreBatch / CPU of the offline loop with tokenization, same prompts."""
    ratios = []
    with ScoringClient(peer.target, timeout_s=60.0) as client:
        client.info()
        for _ in range(2 * subject.config.rounds):
            prompts = subject.make.lognormal(BATCH)
            served_s = took_s(partial(cpu_s, peer.pid), partial(client.score_batch, prompts))
            bare = [partial(subject.model.score_texts, [prompt]) for prompt in prompts]
            ratios.append(served_s / sum(took_s(time.process_time, run) for run in bare))
    return statistics.median(ratios)


def added_latency_ms(subject: Subject, peer: Peer, num: int) -> dict[str, float | None]:
    """Latency of one client's calls - tokenize and run of the same prompt, milliseconds.

    Beside it an `Info` call, which needs no model: the round trip on this machine.
    """
    added, empty = [], []
    ask = peer.client()
    with ScoringClient(peer.target, timeout_s=60.0) as client:
        for prompt in subject.make.lognormal(num):
            bare = partial(subject.model.score_texts, [prompt])
            bare_s = took_s(time.perf_counter, bare)
            added.append(took_s(time.perf_counter, partial(ask, prompt)) - bare_s)
            bare()
            empty.append(took_s(time.perf_counter, client.info))
    return _percentiles("", added) | _percentiles("info_", empty)


def batching_gain(subject: Subject) -> dict[str, float]:
    """CPU one by one / CPU through the batcher, for mixed lengths and for at most 16 tokens."""
    model, make, batcher = subject.model, subject.make, MicroBatcher(num_runners=1)

    def gain(prompts: Sequence[str]) -> float:
        ids = [prompt.ids for prompt in model.tokenizer.tokenize(prompts)]

        def together() -> None:
            call, scored = Call(time.monotonic() + 600), SimpleQueue[Job]()
            batcher.submit([Job(model, prompt, call, scored.put) for prompt in ids], call)
            for _ in ids:
                scored.get()

        alone_s = took_s(time.process_time, lambda: [model.score([prompt]) for prompt in ids])
        return alone_s / took_s(time.process_time, together)

    rounds = range(subject.config.rounds)
    return {
        "mixed": statistics.median(gain(make.lognormal(BATCH)) for _ in rounds),
        "short": statistics.median(gain(make.uniform(BATCH, 6, 16)) for _ in rounds),
    }


def overload(subject: Subject) -> dict[str, float | None]:
    """Goodput and latencies under twice the capacity, for some seconds.

    Goodput is the median over the slices. The load generator takes a share of the cores: goodput on
    the cores left stands beside it, and the latency of `Info` calls beside that of refusals.
    """
    # Capacity is measured before and after each slice, since a machine's speed drifts.
    use_short_slices()  # For the load generator, which shares the machine.
    make, seconds = subject.make, subject.config.overload_s / _OVERLOADS
    with ours(subject.folder, subject.config.precision) as peer:
        clients = [peer.client() for _ in range(NUM_CLIENTS)]
        closed_loop(peer.pid, clients, make.lognormal(100))
        slices = list[Outcomes]()
        capacities = [closed_loop(peer.pid, clients, make.lognormal(_CAPACITY_PROMPTS))]
        info_s: list[float] = []
        for number in range(_OVERLOADS):
            per_s = 2 * capacities[-1].per_s
            prompts = make.lognormal(int(per_s * seconds))
            with _info_calls(peer.target, info_s):
                slices.append(
                    open_loop(peer.target, prompts, per_s=per_s, timeout_s=DEADLINE_S, seed=number)
                )
            capacities.append(closed_loop(peer.pid, clients, make.lognormal(_CAPACITY_PROMPTS)))
    refused_s = [latency_s for result in slices for latency_s in result.refused_s]
    wall_s = sum(each.wall_s for each in slices)
    return {
        **_goodput(capacities, slices, subject.cores),
        **_percentiles("reject_", refused_s),
        **_percentiles("info_", info_s),
        "client_cores": sum(each.client_cpu_s for each in slices) / wall_s,
    }


def _goodput(
    capacities: Sequence[Load], slices: Sequence[Outcomes], cores: int
) -> dict[str, float]:
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


def _percentiles(prefix: str, seconds: Sequence[float]) -> dict[str, float | None]:
    return {f"{prefix}p{percent}_ms": percentile_ms(seconds, percent) for percent in (50, 99)}


@contextmanager
def _info_calls(target: str, latencies_s: list[float]) -> Iterator[None]:
    """Call `Info` again and again during the block, and append the latencies."""
    stop = threading.Event()

    def run() -> None:
        with ScoringClient(target, timeout_s=10.0) as client:
            client.info()
            while not stop.wait(0.02):
                latencies_s.append(took_s(time.perf_counter, client.info))

    with ThreadPoolExecutor(1) as pool:
        calls = pool.submit(run)
        try:
            yield
        finally:
            stop.set()
    calls.result()


def start_and_memory(subject: Subject) -> dict[str, float]:
    """Seconds from a process's start to READY, the median of several; resident memory.

    Memory grows over batches of random lengths.
    """
    starts_s = []
    for _ in range(_STARTS):
        started_s = time.perf_counter()
        with ours(subject.folder, subject.config.precision) as peer:
            starts_s.append(time.perf_counter() - started_s)
            if len(starts_s) < _STARTS:
                continue
            with ScoringClient(peer.target, timeout_s=60.0) as client:
                client.score_batch(subject.make.uniform(10 * BATCH, 4, 128))
                before = rss_bytes(peer.pid)
                client.score_batch(subject.make.uniform(subject.config.num_shapes, 4, 128))
                growth = rss_bytes(peer.pid) / before - 1
    return {
        "start_s": statistics.median(starts_s),
        "rss_mb": before / 2**20,
        "growth_fraction": growth,
    }
