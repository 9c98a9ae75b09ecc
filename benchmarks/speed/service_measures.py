"""One function per figure. Ratios are of CPU time, peers in turn, the median over rounds."""

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Self, TypeVar

import numpy as np
from tokenizers import Tokenizer

from benchmarks.speed.service_peers import Ask, Peer
from lengthwise.bundle import ModelBundle
from scoring_service.client import ScoringClient
from scoring_service.ranker.model import RankerModel
from scoring_service.service.batching import Call, Job, MicroBatcher

T = TypeVar("T")
BATCH: Final = 32
NUM_CLIENTS: Final = 16
SIGMA: Final = 0.65
"""Spread of log length of prompts, about that of instruction data sets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchConfig:
    """Sizes of the bench's measures."""

    bundle: str = "mlruns/demo/bundle"
    """Folder of the bundle to serve."""
    beside: str | None = None
    """Folder of a second bundle, whose figures are measured in turn with the first one's."""
    precision: str = "auto"
    """fp32, int8, or auto (int8 where the bundle has it)."""
    rounds: int = 9
    """Turns that each peer takes; figures are medians over them."""
    slice_size: int = 80
    """Requests of one turn with one client; turns with all clients have three times as many."""
    peer: str | None = None
    """Command that starts another server of the Open Inference Protocol, to compare with; e.g.
    "python benchmarks/peers/naive.py BUNDLE"."""
    seed: int = 0
    """Of the prompts and arrival times."""
    json: bool = False
    """Print one JSON object."""


class PromptMaker:
    """Seeded random prompts of words that are one token each; special tokens count as well."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, seed: int = 0) -> None:
        words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and word.isascii())
        self._words = np.array([word for word in words if len(word) > 3] or words)
        self._max_tokens = max_tokens
        self._random = np.random.default_rng(seed)

    def lognormal(self, num: int, mean_tokens: float = 34.0) -> list[str]:
        """`num` different prompts whose lengths are lognormal with about that mean."""
        lengths = np.rint(self._random.lognormal(np.log(mean_tokens) - SIGMA**2 / 2, SIGMA, num))
        return [self.of_length(int(n)) for n in np.clip(lengths, 4, self._max_tokens)]

    def uniform(self, num: int, low: int, high: int) -> list[str]:
        return [self.of_length(int(n)) for n in self._random.integers(low, high + 1, num)]

    def of_length(self, num_tokens: int) -> str:
        """One prompt of that many tokens, special ones included."""
        return " ".join(self._random.choice(self._words, max(num_tokens - 2, 1)))


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


def cpu_s(pid: int) -> float:
    """CPU time of a process, all threads, user and system, seconds. Linux."""
    # The clock id of another process, as clock_getcpuclockid(3) computes it.
    return time.clock_gettime((~pid << 3) | 2)


def closed_loop(pid: int, asks: Sequence[Ask], prompts: Sequence[str]) -> float:
    """CPU of a process per request, milliseconds.

    Each of `asks` is a client that sends its next prompt when it has the last answer.
    """
    idle = SimpleQueue[Ask]()
    for ask in asks:
        idle.put(ask)

    def send(prompt: str) -> None:
        ask = idle.get()
        ask(prompt)
        idle.put(ask)

    with ThreadPoolExecutor(len(asks)) as pool:
        served_s = took_s(partial(cpu_s, pid), lambda: list(pool.map(send, prompts)))
    return served_s / len(prompts) * 1e3


def offline(run: Callable[[T], object], prompts: Sequence[T], num_threads: int) -> float:
    """CPU of this process per prompt, one per run, milliseconds."""

    def run_part(first: int) -> None:
        for prompt in prompts[first::num_threads]:
            run(prompt)

    with ThreadPoolExecutor(num_threads) as pool:
        spent_s = took_s(time.process_time, lambda: list(pool.map(run_part, range(num_threads))))
    return spent_s / len(prompts) * 1e3


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


Turns = defaultdict[str, list[float]]
"""CPU by round: "NAME/1" with one client, "NAME/all" saturated, milliseconds."""


def taking_turns(subject: Subject, peers: Sequence[Peer]) -> Iterator[Turns]:
    """Measure the bare model, empty calls of our server, and each peer once more for each value.

    The first peer is ours. Yields all rounds so far.
    """
    config, model, cpu_ms = subject.config, subject.model, Turns(list)
    clients = {peer.name: [peer.client() for _ in range(NUM_CLIENTS)] for peer in peers}
    empty = [peers[0].empty_client() for _ in range(NUM_CLIENTS)]
    while True:
        # The bare model runs on every core: concurrent runs share caches and memory.
        for load, threads, num in (("1", 1, 1), ("all", subject.cores, NUM_CLIENTS)):
            prompts = subject.make.lognormal(config.slice_size * (1 if num == 1 else 3))
            ids = [[prompt.ids] for prompt in model.tokenizer.tokenize(prompts)]
            took_ms = {"bare": offline(model.score, ids, threads)}
            took_ms["empty"] = closed_loop(peers[0].pid, empty[:num], prompts)
            texts = [[prompt] for prompt in prompts]
            took_ms["floor"] = took_ms["empty"] + offline(model.score_texts, texts, threads)
            for peer in peers:
                took_ms[peer.name] = closed_loop(peer.pid, clients[peer.name][:num], prompts)
            for name, ms in took_ms.items():
                cpu_ms[f"{name}/{load}"].append(ms)
        yield cpu_ms


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


def added_latency_ms(subject: Subject, peer: Peer, num: int) -> dict[str, float]:
    """Latency of one client's calls - tokenize and run of the same prompt, milliseconds."""
    added, ask = [], peer.client()
    for prompt in subject.make.lognormal(num):
        bare_s = took_s(time.perf_counter, partial(subject.model.score_texts, [prompt]))
        added.append(took_s(time.perf_counter, partial(ask, prompt)) - bare_s)
    return {f"p{p}": float(np.percentile(added, p) * 1e3) for p in (50, 90, 99)}


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
