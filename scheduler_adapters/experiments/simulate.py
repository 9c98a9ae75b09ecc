"""`simulate`: one policy on one trace and one instance, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scheduler_adapters.command_line import run_command
from scheduler_adapters.experiments.metrics import Statistic, Summary, summarize
from scheduler_adapters.experiments.timeline import write_timeline
from scheduler_adapters.experiments.workload import (
    LENGTH_STREAM,
    Requests,
    make_requests,
    poisson_arrivals_s,
    read_trace,
)
from scheduler_adapters.policy import load_policy
from scheduler_adapters.scores import ConstantScores, OracleScores, ScoreSource, SyntheticScores
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.simulation import simulate
from scoring_service.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SimulateConfig:
    """What to simulate."""

    policy: str = "pars"
    """Name of a policy (fcfs, pars, oracle, ...) or import path package.module:callable."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What the policy takes, e.g. {"starve_after_s": null}."""
    trace: Path | None = None
    """.csv, .csv.gz, .parquet or .jsonl with token columns; none: a seeded log-normal mix."""
    num_requests: int = 2000
    """At most this many requests of the trace."""
    rate_per_s: float | None = None
    """Poisson arrivals per second; none: the trace's own times, or all at once."""
    scores: Literal["trace", "oracle", "synthetic", "constant"] = "synthetic"
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
    out: Path | None = None
    """Write every request with its token times to this .parquet or .jsonl file."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        if self.num_requests < 1:
            raise ConfigError(f"num_requests is {self.num_requests}; use 1 or more")


def run(config: SimulateConfig) -> None:
    """Simulate one policy on one instance in virtual time; prints the table of latencies.

    Examples:
      python -m scheduler_adapters simulate --policy pars --num_requests 2000
      python -m scheduler_adapters simulate --trace trace.csv --policy fcfs --rate_per_s 4 --json

    A trace needs a column of prompt tokens and one of output tokens; arrival_s (seconds) and score
    (higher = longer) are used where they exist.
    """
    requests = with_scores(load_requests(config), config)
    timeline = simulate(
        requests, load_policy(config.policy, **config.settings), make_instance(config)
    )
    if config.out is not None:
        write_timeline(timeline, config.out)
    summary = summarize(timeline)
    if config.json:
        print(json.dumps({"policy": config.policy, **json_ready(summary.to_dict())}))
    else:
        print(format_summary(config.policy, summary))


def make_instance(config: SimulateConfig) -> Instance:
    """The profile's instance with the limits of the config."""
    instance = Instance.preset(
        config.profile, max_num_seqs=config.max_num_seqs, max_tokens=config.max_tokens
    )
    return instance if config.kv_blocks is None else replace(instance, kv_blocks=config.kv_blocks)


def load_requests(config: SimulateConfig) -> Requests:
    """The requests of the trace, or synthetic ones, with the arrivals that were asked for."""
    if config.trace is not None:
        requests = read_trace(config.trace, limit=config.num_requests)
    else:
        requests = synthetic_requests(config.num_requests, seed=config.seed)
    if config.rate_per_s is None:
        return requests
    arrival_s = poisson_arrivals_s(len(requests), rate_per_s=config.rate_per_s, seed=config.seed)
    return replace(requests, arrival_s=arrival_s)


def synthetic_requests(count: int, *, seed: int) -> Requests:
    """Log-normal lengths like those of a chat service: medians 200 prompt and 160 output tokens."""
    random = np.random.default_rng((seed, LENGTH_STREAM))
    return make_requests(
        prompt_tokens=np.clip(random.lognormal(np.log(200), 1.0, count), 1, 4096).astype(np.int64),
        output_tokens=np.clip(random.lognormal(np.log(160), 1.0, count), 1, 4096).astype(np.int64),
    )


def with_scores(requests: Requests, config: SimulateConfig) -> Requests:
    """The requests with the scores that were asked for."""
    sources: dict[str, ScoreSource] = {
        "oracle": OracleScores(),
        "synthetic": SyntheticScores(tau_b=config.tau_b, seed=config.seed),
        "constant": ConstantScores(),
    }
    name = "oracle" if config.policy == "oracle" else config.scores
    return requests if name == "trace" else requests.with_scores(sources[name].scores(requests))


def format_summary(name: str, summary: Summary) -> str:
    """The summary as a table for a terminal."""
    statistics = {
        key: value
        for key in asdict(summary)
        if isinstance(value := getattr(summary, key), Statistic)
    }
    lines = [
        f"{name}: {summary.num_finished} of {summary.num_requests} requests finished, "
        f"{summary.num_rejected} rejected, {summary.num_preemptions} preemptions, "
        f"{summary.output_tokens_per_s:.0f} output tokens/s over {summary.makespan_s:.1f} s",
        f"{'':24}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}",
    ]
    for key, value in statistics.items():
        numbers = (value.mean, value.p50, value.p90, value.p99)
        lines.append(f"{key:24}" + "".join(f"{number:10.4f}" for number in numbers))
    return "\n".join(lines)


def json_ready(value: Any) -> Any:
    """The same with null for NaN, which JSON does not know."""
    if isinstance(value, dict):
        return {key: json_ready(item) for key, item in value.items()}
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def main(arguments: Sequence[str]) -> int:
    """The command line. Returns the exit code."""
    return run_command("simulate", SimulateConfig, run, arguments)
