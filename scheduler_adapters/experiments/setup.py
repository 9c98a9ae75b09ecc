"""What the commands have in common: which requests, with which scores, on which instance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from scheduler_adapters.experiments.workload import (
    LENGTH_STREAM,
    Requests,
    gamma_arrivals_s,
    make_requests,
    poisson_arrivals_s,
    read_trace,
    shock_arrivals_s,
)
from scheduler_adapters.scores import ConstantScores, OracleScores, SyntheticScores
from scheduler_adapters.simulator.instance import Instance
from scoring_service.errors import ConfigError

ScoreName = Literal["trace", "oracle", "synthetic", "constant"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Requests, scores and an instance."""

    trace: Path | None = None
    """.csv, .csv.gz, .parquet or .jsonl with token columns; none: a seeded log-normal mix."""
    num_requests: int = 2000
    """At most this many requests of the trace."""
    rate_per_s: float | None = None
    """Arrivals per second; none: the trace's own times, or all at once."""
    arrivals: Literal["poisson", "gamma", "shock"] = "poisson"
    """How requests arrive at that rate; shock: five times the rate in the middle fifth."""
    cv: float = 3.0
    """Coefficient of variation of the gaps between gamma arrivals; 1 is Poisson."""
    scores: ScoreName = "synthetic"
    """Where scores come from; the policy oracle always takes the true lengths."""
    tau_b: float = 0.75
    """Kendall tau-b of synthetic scores with the true lengths."""
    profile: str = "llama-3-8b@a100-80g"
    """MODEL@GPU: step times and KV memory."""
    max_num_seqs: int = 256
    """Requests that may run at once."""
    max_tokens: int = 2048
    """Token budget of a step."""
    kv_blocks: int | None = None
    """KV memory in blocks of 16 tokens; none: what the profile's GPU leaves."""
    seed: int = 0
    """Of arrivals, synthetic lengths and synthetic scores."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        if self.num_requests < 1:
            raise ConfigError(f"num_requests is {self.num_requests}; use 1 or more")


def make_instance(setup: Setup) -> Instance:
    """The profile's instance with the limits of the setup."""
    instance = Instance.preset(
        setup.profile, max_num_seqs=setup.max_num_seqs, max_tokens=setup.max_tokens
    )
    return instance if setup.kv_blocks is None else replace(instance, kv_blocks=setup.kv_blocks)


def load_requests(setup: Setup) -> Requests:
    """The requests of the trace, or synthetic ones, with the arrivals that were asked for."""
    if setup.trace is not None:
        requests = read_trace(setup.trace, limit=setup.num_requests)
    else:
        requests = synthetic_requests(setup.num_requests, seed=setup.seed)
    if setup.rate_per_s is None:
        return requests
    return replace(requests, arrival_s=arrivals_s(setup, len(requests), setup.rate_per_s))


def arrivals_s(setup: Setup, count: int, rate_per_s: float) -> np.ndarray:
    """Arrival times (count,) of the setup's process."""
    if setup.arrivals == "gamma":
        return gamma_arrivals_s(count, rate_per_s=rate_per_s, cv=setup.cv, seed=setup.seed)
    if setup.arrivals == "shock":
        return shock_arrivals_s(count, rate_per_s=rate_per_s, factor=5.0, seed=setup.seed)
    return poisson_arrivals_s(count, rate_per_s=rate_per_s, seed=setup.seed)


def synthetic_requests(count: int, *, seed: int) -> Requests:
    """Log-normal lengths like those of a chat service: medians 200 prompt and 160 output tokens."""
    random = np.random.default_rng((seed, LENGTH_STREAM))
    return make_requests(
        prompt_tokens=np.clip(random.lognormal(np.log(200), 1.0, count), 1, 4096).astype(np.int64),
        output_tokens=np.clip(random.lognormal(np.log(160), 1.0, count), 1, 4096).astype(np.int64),
    )


def with_scores(requests: Requests, policy: str, setup: Setup) -> Requests:
    """The requests with the scores that were asked for; the oracle's are the true lengths."""
    makers: dict[str, Callable[[], np.ndarray]] = {
        "trace": lambda: requests.score,
        "oracle": lambda: OracleScores().scores(requests),
        "synthetic": lambda: SyntheticScores(tau_b=setup.tau_b, seed=setup.seed).scores(requests),
        "constant": lambda: ConstantScores().scores(requests),
    }
    return requests.with_scores(makers["oracle" if policy == "oracle" else setup.scores]())
