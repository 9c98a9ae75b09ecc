"""The interface through which validation, demo and benches drive a real engine in this process.

An engine with an `EngineDriver` can be compared with the simulator: it serves requests as they
arrive, reports to observers, and has limits.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scheduler_adapters.engines.engine_clock import ClockKind, EngineClock
from scheduler_adapters.policy import Policy
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Requests


class EngineDriver(ABC):
    """One engine in this process, idle between two calls. The function that opens it closes it."""

    limits: Mapping[str, Any]
    """Memory, seats and token budget of the engine, as fields of `Instance`."""

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
    ) -> Timeline:
        """Serve the requests as they arrive by `clock`, which is restarted.

        Each request gets its number of output tokens. Cached KV blocks and the policy's load are
        reset first. `seed` draws the prompts; `policy` None is the policy of the opened engine.
        """


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
