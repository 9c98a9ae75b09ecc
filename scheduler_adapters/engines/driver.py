"""The interface through which validation, demo and benches drive a real engine in this process.

An engine with an `EngineDriver` can be compared with the simulator: it serves requests as they
arrive, reports to observers, and has limits.
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import nan
from typing import Any, Self

import numpy as np

from scheduler_adapters.engines.engine_clock import ClockKind, EngineClock
from scheduler_adapters.planner.engine_view import EngineView
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.timeline import Timeline, timeline_from_token_times
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import Requests


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineLimits:
    """The limits of one engine, in the terms of a simulated instance."""

    kv_blocks: int
    max_num_seqs: int
    max_tokens: int
    block_tokens: int
    watermark_fraction: float = 0.0

    @classmethod
    def of(cls, view: EngineView[Any], *, watermark_fraction: float = 0.0) -> Self:
        """Return the limits that an engine's planner reads."""
        return cls(
            kv_blocks=view.total_blocks,
            max_num_seqs=view.max_num_seqs,
            max_tokens=view.max_tokens,
            block_tokens=view.block_tokens,
            watermark_fraction=watermark_fraction,
        )

    def instance(self, latency: LatencyModel) -> Instance:
        """Return a simulated instance with these limits and step times."""
        return Instance(latency=latency, **asdict(self))


@dataclass(frozen=True, kw_only=True)
class ServedRun:
    """The outcome of serving some requests."""

    timeline: Timeline
    token_ids: Sequence[Sequence[int]]
    """Output token ids of each request, in the order of the requests."""


class EngineDriver(ABC):
    """One engine in this process, idle between two calls. The function that opens it closes it."""

    limits: EngineLimits
    """Memory, seats and token budget of the engine."""

    @abstractmethod
    def clock(self, wanted: ClockKind | None) -> tuple[ClockKind, EngineClock]:
        """Return a clock for this engine and its kind; None: the engine's usual kind.

        Raises ConfigError for a clock that cannot measure the engine.
        """

    @abstractmethod
    def serve(
        self,
        requests: Requests,
        *,
        clock: EngineClock,
        seed: int,
        policy: Policy | None = None,
        observers: Sequence[EngineObserver] = (),
    ) -> ServedRun:
        """Serve the requests as they arrive by `clock`, which is restarted.

        Each request gets its number of output tokens. Cached KV blocks and the policy's load are
        reset first. `seed` draws the prompts; `policy` None is the policy of the opened engine.
        """


class TokenTimes(EngineObserver):
    """The token times of one run, for engines that do not return them."""

    def __init__(self) -> None:
        self._scheduled_s: dict[str, float] = {}
        self._token_s: dict[str, list[float]] = defaultdict(list)
        self._preemptions = Counter[str]()

    def admitted(self, request: RequestView, now_s: float) -> None:
        self._scheduled_s.setdefault(request.request_id, now_s)

    def emitted(self, request: RequestView, num_tokens: int, now_s: float) -> None:
        self._token_s[request.request_id] += [now_s] * num_tokens

    def evicted(self, request: RequestView, now_s: float) -> None:
        self._preemptions[request.request_id] += 1

    def timeline(self, requests: Requests) -> Timeline:
        """Return the timeline of requests with unique ids."""
        names = [str(name) for name in requests.request_id]
        return timeline_from_token_times(
            requests,
            [self._token_s[name] for name in names],
            scheduled_s=[self._scheduled_s.get(name, nan) for name in names],
            preemptions=[self._preemptions[name] for name in names],
        )


def random_prompts(
    requests: Requests, seed: int, vocabulary: int, *, shared_tokens: int = 0
) -> list[list[int]]:
    """Return prompts of random token ids; no prompt finds another's KV blocks.

    `shared_tokens`: length of a common prefix, which never includes a prompt's last token.
    """
    random = np.random.default_rng(seed)
    prompts = [random.integers(3, vocabulary, size).tolist() for size in requests.prompt_tokens]
    shared = random.integers(3, vocabulary, shared_tokens).tolist()
    for prompt in prompts:
        size = min(shared_tokens, len(prompt) - 1)
        prompt[:size] = shared[:size]
    return prompts


def late_scores_of(requests: Requests) -> list[tuple[float, int]]:
    """Return (arrival time, row) of each score that arrives after its request, in order."""
    known_s = requests.arrival_s + requests.score_delay_s
    is_late = (requests.score_delay_s > 0) & np.isfinite(known_s) & ~np.isnan(requests.score)
    return sorted((float(known_s[row]), int(row)) for row in np.flatnonzero(is_late))


def longest_context(requests: Requests) -> int:
    """Return one more than the tokens of the longest request, prompt and output."""
    return int(np.max(requests.prompt_tokens + requests.output_tokens, initial=1)) + 1
