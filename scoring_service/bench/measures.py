"""One function per figure. Ratios are of CPU time, peers in turn, the median over rounds."""

import itertools
import os
import re
import shutil
import statistics
import threading
import time
import urllib.request
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
from lengthwise.child_processes import free_port
from scoring_service.bench.load import Load, Outcomes, closed_loop, open_loop, percentile_ms
from scoring_service.bench.peers import Peer, ours
from scoring_service.bench.processes import cpu_s, rss_bytes
from scoring_service.bench.workload import PromptMaker
from scoring_service.client import Score, ScoringClient
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
    """Requests of one turn."""
    overload_s: float = 10.0
    """Duration of the overload, seconds."""
    num_shapes: int = 10_000
    """Prompts of random lengths over which memory may grow."""
    peer: str | None = None
    """Command that starts another server of the Open Inference Protocol, to compare with; e.g.
    "python tests/peers/mlserver.py BUNDLE"."""
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
    tokenizer: Tokenizer
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
            tokenizer=tokenizer,
            make=PromptMaker(tokenizer, bundle.manifest.max_prompt_tokens, config.seed),
            cores=len(os.sched_getaffinity(0)),
        )


def offline(model: RankerModel, prompts: Sequence[str], num_threads: int) -> Load:
    """The bare runtime: tokenized prompts, one per run, on `num_threads` threads."""
    ids = {p: t.ids for p, t in zip(prompts, model.tokenizer.tokenize(prompts), strict=True)}
    asks = [lambda prompt: model.score([ids[prompt]])] * num_threads
    return closed_loop(os.getpid(), asks, prompts)


def score_bare(model: RankerModel, prompt: str) -> None:
    """Tokenize and run one prompt: the least that a service must do."""
    model.score([model.tokenizer.tokenize([prompt])[0].ids])


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


def cpu_in_turns(subject: Subject, peers: Sequence[Peer]) -> Mapping[str, Sequence[float]]:
    """CPU per request of each round, milliseconds: "NAME/1" with one client, "NAME/all" saturated.

    Saturated, the bare model runs on as many threads as cores, since concurrent runs share
    caches and memory.
    """
    turns = defaultdict[str, list[float]](list)
    clients = {peer.name: [peer.client() for _ in range(NUM_CLIENTS)] for peer in peers}
    for _ in range(subject.config.rounds):
        prompts = subject.make.lognormal(subject.config.slice_size)
        for load, threads, num in (("1", 1, 1), ("all", subject.cores, NUM_CLIENTS)):
            turns[f"bare/{load}"].append(offline(subject.model, prompts, threads).cpu_ms)
            for peer in peers:
                measured = closed_loop(peer.pid, clients[peer.name][:num], prompts)
                turns[f"{peer.name}/{load}"].append(measured.cpu_ms)
    return turns


def batch_cpu_ratio(subject: Subject, peer: Peer) -> float:
    """Server CPU of ScoreBatch / CPU of the offline loop with tokenization, same prompts."""
    ratios = []
    with ScoringClient(peer.target, timeout_s=60.0) as client:
        client.info()
        for _ in range(2 * subject.config.rounds):
            prompts = subject.make.lognormal(BATCH)
            served_s = took_s(partial(cpu_s, peer.pid), partial(client.score_batch, prompts))
            bare = [partial(score_bare, subject.model, prompt) for prompt in prompts]
            ratios.append(served_s / sum(took_s(time.process_time, run) for run in bare))
    return statistics.median(ratios)


def throughput_ratio(subject: Subject, peer: Peer) -> tuple[float, float]:
    """Saturated throughput / that of the bare runtime on the cores left; and the former, per s.

    Only for an idle machine: on a busy one the process with more threads gets more of it.
    """
    clients = [peer.client() for _ in range(NUM_CLIENTS)]
    ratios, rates = [], []
    for _ in range(subject.config.rounds):
        prompts = subject.make.lognormal(3 * subject.config.slice_size)
        bare = offline(subject.model, prompts, subject.cores)
        load = closed_loop(peer.pid, clients, prompts)
        left = 1 - load.client_cores / subject.cores
        ratios.append(load.per_s / (bare.per_s * left))
        rates.append(load.per_s)
    return statistics.median(ratios), statistics.median(rates)


def added_latency_ms(subject: Subject, peer: Peer, num: int) -> dict[str, float | None]:
    """Latency of one client's calls - tokenize and run of the same prompt, milliseconds.

    Beside it an `Info` call, which needs no model: the round trip on this machine.
    """
    added, empty = [], []
    ask = peer.client()
    with ScoringClient(peer.target, timeout_s=60.0) as client:
        for prompt in subject.make.lognormal(num):
            bare = partial(score_bare, subject.model, prompt)
            bare_s = took_s(time.perf_counter, bare)
            added.append(took_s(time.perf_counter, partial(ask, prompt)) - bare_s)
            bare()
            empty.append(took_s(time.perf_counter, client.info))
    return {
        f"{name}p{percent}": percentile_ms(seconds, percent)
        for name, seconds in (("", added), ("info_", empty))
        for percent in (50, 99)
    }


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


def huge_prompt_ms(subject: Subject) -> float:
    """CPU to tokenize 20,000 characters, milliseconds. Raises AssertionError if an id differs."""
    prompts = [subject.make.of_characters(20_000)]
    full, fast = subject.tokenizer, subject.model.tokenizer
    full.no_padding()
    full.enable_truncation(fast.max_tokens)
    assert list(fast.tokenize(prompts)[0].ids) == full.encode(prompts[0]).ids, "the ids differ"
    tokenize = partial(fast.tokenize, prompts)
    return statistics.median(took_s(time.process_time, tokenize) for _ in range(51)) * 1e3


def batch_invariance(target: str, make: PromptMaker, num: int) -> float:
    """Largest difference between a prompt's score alone and in a batch of the service."""
    prompts = make.lognormal(num)
    with ScoringClient(target, timeout_s=60.0) as client:
        alone = [client.score(prompt).value for prompt in prompts]
        together = [s.value for s in client.score_batch(prompts) if isinstance(s, Score)]
    return max(abs(a - b) for a, b in zip(alone, together, strict=True))


def overload(subject: Subject) -> dict[str, float | None]:
    """Twice the capacity for some seconds: goodput, refusals, and whether late work was done.

    Goodput is the median over the slices. The load generator takes a share of the cores: goodput on
    the cores left stands beside it, and the latency of `Info` calls beside that of refusals.
    """
    # Capacity is measured before and after each slice, since a machine's speed drifts.
    metrics = f"127.0.0.1:{free_port()}"
    use_short_slices()  # For the load generator, which shares the machine.
    make, seconds = subject.make, subject.config.overload_s / _OVERLOADS
    with ours(subject.folder, subject.config.precision, "--metrics_address", metrics) as peer:
        clients = [peer.client() for _ in range(NUM_CLIENTS)]
        closed_loop(peer.pid, clients, make.lognormal(100))
        slices = list[Outcomes]()
        capacities = [closed_loop(peer.pid, clients, make.lognormal(_CAPACITY_PROMPTS))]
        idle_calls_s: list[float] = []
        for number in range(_OVERLOADS):
            per_s = 2 * capacities[-1].per_s
            prompts = make.lognormal(int(per_s * seconds))
            with _asked_meanwhile(1, peer.target, ScoringClient.info, pause_s=0.02) as calls:
                slices.append(
                    open_loop(peer.target, prompts, per_s=per_s, timeout_s=DEADLINE_S, seed=number)
                )
            idle_calls_s += [took for _, took in calls]
            capacities.append(closed_loop(peer.pid, clients, make.lognormal(_CAPACITY_PROMPTS)))
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as page:
            (late,) = re.findall(rb"^scoring_begun_late_prompts_total (.*)$", page.read(), re.M)
    refused_s = [latency_s for result in slices for latency_s in result.refused_s]
    answered_s = [latency_s for result in slices for latency_s in result.answered_s]
    sent, wall_s = sum(each.sent for each in slices), sum(each.wall_s for each in slices)
    return {
        **_goodput(capacities, slices, subject.cores),
        "offered_fraction": sent / wall_s / statistics.mean(load.per_s for load in capacities),
        "answered_p99_ms": percentile_ms(answered_s, 99),
        "reject_p99_ms": percentile_ms(refused_s, 99),
        "reject_p50_ms": percentile_ms(refused_s, 50),
        "info_p99_ms": percentile_ms(idle_calls_s, 99),
        "info_p50_ms": percentile_ms(idle_calls_s, 50),
        "client_cores": sum(each.client_cpu_s for each in slices) / wall_s,
        "deadline_ms": DEADLINE_S * 1e3,
        "timed_out_fraction": sum(sum(each.failed.values()) for each in slices) / sent,
        "expired_computed": float(late),
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


@contextmanager
def _asked_meanwhile(
    num_clients: int, target: str, ask: Callable[[ScoringClient], object], *, pause_s: float = 0.0
) -> Iterator[list[tuple[float, float]]]:
    """Yield the start and latency of clients' calls, one after the other, during the block."""
    calls: list[tuple[float, float]] = []
    stop = threading.Event()

    def run() -> None:
        with ScoringClient(target, timeout_s=10.0) as client:
            client.info()
            while not stop.wait(pause_s):
                begun_s = time.perf_counter()
                ask(client)
                calls.append((begun_s, time.perf_counter() - begun_s))

    with ThreadPoolExecutor(num_clients) as pool:
        asked = [pool.submit(run) for _ in range(num_clients)]
        try:
            yield calls
        finally:
            stop.set()
    for future in asked:
        future.result()


def memory(subject: Subject) -> dict[str, float]:
    """Resident memory after warm-up, and its growth over random lengths and batch sizes."""
    with (
        ours(subject.folder, subject.config.precision) as peer,
        ScoringClient(peer.target, timeout_s=60.0) as client,
    ):

        def run(num: int) -> None:
            prompts = subject.make.uniform(num, 4, 128)
            for start in range(0, num, BATCH):
                client.score_batch(prompts[start : start + BATCH])

        run(10 * BATCH)
        before = rss_bytes(peer.pid)
        run(subject.config.num_shapes)
        return {"rss_mb": before / 2**20, "growth_fraction": rss_bytes(peer.pid) / before - 1}


def cold_start_s(subject: Subject, rounds: int) -> float:
    """From the start of the process to READY, model timed and all; the median."""

    def once() -> float:
        started_s = time.perf_counter()
        with ours(subject.folder, subject.config.precision):
            return time.perf_counter() - started_s

    return statistics.median(once() for _ in range(rounds))


def reload(subject: Subject, folder: Path) -> dict[str, float | None]:
    """Failed calls while a new revision is loaded, and p99 around the swap / before it."""
    watched = folder / "bundle"
    _write_revision(subject.folder, watched, "first")
    prompts = itertools.cycle(subject.make.lognormal(20_000))
    scored: list[bool] = []

    def ask(client: ScoringClient) -> None:
        (score,) = client.score_batch([next(prompts)])
        scored.append(isinstance(score, Score))

    with (
        ours(watched, subject.config.precision, "--reload_poll_s", "0.2") as peer,
        ScoringClient(peer.target, timeout_s=10.0) as observer,
        _asked_meanwhile(2, peer.target, ask) as calls,
    ):
        first = observer.info().revision
        time.sleep(subject.config.overload_s / 2)
        pushed_s = time.perf_counter()
        _write_revision(subject.folder, watched, "second")
        while not (swapped := observer.info().revision != first):
            if time.perf_counter() > pushed_s + 30.0:
                break
            time.sleep(0.02)
        ended_s = time.perf_counter() + 0.5
        time.sleep(0.5)
    steady = [took for begun, took in calls if begun < pushed_s]
    around = [took for begun, took in calls if pushed_s <= begun < ended_s]
    before, after = percentile_ms(steady, 99), percentile_ms(around, 99)
    return {
        "failed": float(scored.count(False) + (not swapped)),
        "p99_ratio": after / before if after is not None and before else None,
        "requests": float(len(calls)),
    }


def _write_revision(bundle: Path, target: Path, note: str) -> None:
    loaded = ModelBundle.load(bundle)

    def fill(work: Path) -> None:
        for name in loaded.manifest.files:
            shutil.copy(bundle / name, work / name)
        (work / "note.txt").write_text(note)

    ModelBundle.write(target, loaded.manifest, fill)
