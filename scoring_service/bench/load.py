"""Requests to a service: closed loop (a fixed number of clients) and open loop (a fixed rate).

And random prompts of prescribed lengths for them.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import grpc
import numpy as np
from tokenizers import Tokenizer

from lengthwise.errors import ServiceOverloaded
from scoring_service.client.channel import PLAINTEXT, ClientSecurity
from scoring_service.client.codec import write_prompt
from scoring_service.proto.status import CODE_OF, from_rpc_error
from scoring_service.server.rpc import SERVICE
from scoring_service.server.worker import EndRequest

Ask = Callable[[str], object]
SIGMA: Final = 0.65
"""Spread of log length of prompts, about that of instruction data sets."""


@dataclass(frozen=True, slots=True)
class Load:
    """Cost of one slice of load."""

    cpu_ms: float
    """Server CPU per request, milliseconds."""
    per_s: float
    client_cores: float
    """Cores that the load generator used."""


def cpu_s(pid: int) -> float:
    """CPU time of a process, all threads, user and system, seconds. Linux."""
    # The clock id of another process, as clock_getcpuclockid(3) computes it.
    return time.clock_gettime((~pid << 3) | 2)


def rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def percentile_ms(seconds: Sequence[float], percent: float) -> float | None:
    """A percentile in milliseconds; None without values."""
    return float(np.percentile(seconds, percent) * 1e3) if seconds else None


def closed_loop(pid: int, asks: Sequence[Ask], prompts: Sequence[str]) -> Load:
    """Each of `asks` is a client that sends its next prompt when it has the last answer."""
    idle = SimpleQueue[Ask]()
    for ask in asks:
        idle.put(ask)

    def send(prompt: str) -> None:
        ask = idle.get()
        ask(prompt)
        idle.put(ask)

    server_s, client_s, started_s = cpu_s(pid), time.process_time(), time.perf_counter()
    with ThreadPoolExecutor(len(asks)) as pool:
        list(pool.map(send, prompts))
    wall_s = time.perf_counter() - started_s
    return Load(
        cpu_ms=(cpu_s(pid) - server_s) / len(prompts) * 1e3,
        per_s=len(prompts) / wall_s,
        client_cores=(time.process_time() - client_s) / wall_s,
    )


@dataclass(slots=True)
class Outcomes:
    """Outcomes of an open loop's requests."""

    wall_s: float = 0.0
    """From the first request to the last."""
    landed_s: float = 0.0
    """From the first request to the last outcome."""
    sent: int = 0
    answered_s: list[float] = field(default_factory=list)
    """Latency of each request that got its score in time."""
    refused_s: list[float] = field(default_factory=list)
    """Latency of each refusal."""
    failed: Counter[str] = field(default_factory=Counter)
    """Number of other failures by the name of their error."""
    client_cpu_s: float = 0.0
    """CPU time of this process for sending and receiving."""


def open_loop(
    target: str,
    prompts: Sequence[str],
    *,
    per_s: float,
    timeout_s: float,
    seed: int = 0,
    security: ClientSecurity = PLAINTEXT,
    stop: EndRequest | None = None,
) -> Outcomes:
    """Send `prompts` at Poisson arrivals of that rate, answered or not, until `stop` is made."""
    stop = stop or EndRequest()
    outcomes = Outcomes()
    lock = threading.Lock()
    landed = threading.Semaphore(0)
    gaps_s = np.random.default_rng(seed).exponential(1 / per_s, len(prompts)).tolist()

    def done(rpc: grpc.Future, begun_s: float) -> None:
        took_s = time.perf_counter() - begun_s
        code = rpc.code()
        with lock:
            if code is grpc.StatusCode.OK:
                outcomes.answered_s.append(took_s)
            elif code is CODE_OF[ServiceOverloaded]:
                outcomes.refused_s.append(took_s)
            else:
                outcomes.failed[type(from_rpc_error(rpc, target)).__name__] += 1
        landed.release()

    # The client shares the machine with the server: nothing is encoded or parsed under load.
    requests = [write_prompt(prompt, "").SerializeToString() for prompt in prompts]
    with security.open(target) as channel:
        call = channel.unary_unary(f"/{SERVICE}/Score")
        due_s = started_s = time.perf_counter()
        client_s = time.process_time()
        for request, gap_s in zip(requests, gaps_s, strict=True):
            due_s += gap_s
            if stop.wait(max(0.0, due_s - time.perf_counter())):
                break
            begun_s = time.perf_counter()
            rpc = call.future(request, timeout=timeout_s, metadata=security.metadata)
            rpc.add_done_callback(lambda rpc, begun_s=begun_s: done(rpc, begun_s))
            outcomes.sent += 1
        outcomes.wall_s = time.perf_counter() - started_s
        for _ in range(outcomes.sent):
            landed.acquire()
        outcomes.landed_s = time.perf_counter() - started_s
        outcomes.client_cpu_s = time.process_time() - client_s
    return outcomes


class PromptMaker:
    """Seeded random prompts of words that are one token each; special tokens count as well."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, seed: int = 0) -> None:
        words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and word.isascii())
        self._words = np.array([word for word in words if len(word) > 3] or words)
        self._max_tokens = max_tokens
        self._random = np.random.default_rng(seed)

    def lognormal(self, num: int, mean_tokens: float = 34.0) -> list[str]:
        """`num` different prompts whose lengths are lognormal with about that mean."""
        mu = np.log(mean_tokens) - SIGMA**2 / 2
        lengths = np.rint(self._random.lognormal(mu, SIGMA, num))
        return [self.of_length(int(n)) for n in np.clip(lengths, 4, self._max_tokens)]

    def uniform(self, num: int, low: int, high: int) -> list[str]:
        return [self.of_length(int(n)) for n in self._random.integers(low, high + 1, num)]

    def of_length(self, num_tokens: int) -> str:
        """One prompt of that many tokens, special ones included."""
        return " ".join(self._random.choice(self._words, max(num_tokens - 2, 1)))
