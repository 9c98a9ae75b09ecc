"""`capacity`: the highest arrival rate at which a policy still meets its latency targets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scheduler_adapters.command_line import run_command
from scheduler_adapters.experiments.metrics import summarize
from scheduler_adapters.experiments.progress import Progress
from scheduler_adapters.experiments.setup import (
    Setup,
    arrivals_s,
    load_requests,
    make_instance,
    with_scores,
)
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.simulation import simulate
from scoring_service.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class CapacityConfig(Setup):
    """Which policies, and which targets."""

    policies: list[str] = field(default_factory=lambda: ["fcfs", "pars"])
    """Names of policies or import paths."""
    slo: dict[str, float] = field(default_factory=lambda: {"ttft_s.p99": 1.0, "tpot_s.p99": 0.1})
    """Metric.statistic -> the most it may be, seconds; statistics are mean, p50, p90, p99."""
    seeds: int = 3
    """Searches with other arrivals."""
    tolerance: float = 0.02
    """Relative width at which a search ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seeds < 1 or not 0 < self.tolerance < 1:
            raise ConfigError(
                f"seeds is {self.seeds} and tolerance {self.tolerance}; use 1 or more and (0, 1)"
            )
        for name in self.slo:
            metric, _, statistic = name.partition(".")
            if metric not in _METRICS or statistic not in ("mean", "p50", "p90", "p99"):
                raise ConfigError(
                    f"slo names {name!r}; use one of {', '.join(_METRICS)} with .mean, .p50, .p90 "
                    "or .p99"
                )


_METRICS = ("ttft_s", "ttfat_s", "tbt_s", "tpot_s", "e2e_s", "queueing_s", "normalized_latency_s")


def run(config: CapacityConfig) -> None:
    """Find the highest arrival rate that meets all targets, by bisection, with its spread.

    Example:
      python -m scheduler_adapters capacity --policies '[fcfs, pars]' --slo '{"e2e_s.p90": 20}'

    Rates are requests per second of one instance; the interval is 95% over the seeds (Student).
    """
    rows = []
    with Progress(len(config.policies) * config.seeds) as progress:
        for policy in config.policies:
            rates = []
            for seed in range(config.seed, config.seed + config.seeds):
                rates.append(capacity_of(policy, replace(config, seed=seed)))
                progress.step(policy)
            rows.append({"policy": policy, **mean_and_interval(rates), "rates_per_s": rates})
    if config.json:
        print(json.dumps({"slo": config.slo, "capacity": rows}))
        return
    for row in rows:
        low, high = row["interval"]
        print(f"{row['policy']:20} {row['mean']:8.3f} requests/s  [{low:.3f}, {high:.3f}]")


def capacity_of(policy: str, config: CapacityConfig) -> float:
    """Highest rate per second for one seed; 0 where even the lowest one misses a target."""
    requests = with_scores(load_requests(config), policy, config)
    instance = make_instance(config)

    def meets(rate_per_s: float) -> bool:
        arriving = replace(requests, arrival_s=arrivals_s(config, len(requests), rate_per_s))
        summary = summarize(simulate(arriving, load_policy(policy), instance))
        return summary.num_unfinished == 0 and all(
            _value(summary, name) <= most for name, most in config.slo.items()
        )

    return highest_rate(meets, low=0.05, high=1.0, tolerance=config.tolerance, grows=True)


def _value(summary: Any, name: str) -> float:
    metric, _, statistic = name.partition(".")
    return float(getattr(getattr(summary, metric), statistic))


def highest_rate(
    meets: Callable[[float], bool],
    *,
    low: float,
    high: float,
    tolerance: float,
    grows: bool = False,
) -> float:
    """The highest rate for which `meets` holds, by bisection between `low` and `high`.

    `tolerance` is relative. With `grows`, `high` is doubled until it fails. 0 where `low` fails,
    `high` where it holds.
    """
    if not meets(low):
        return 0.0
    while grows and high < _MAX_RATE_PER_S and meets(high):
        low, high = high, 2 * high
    if not grows and meets(high):
        return high
    while high - low > tolerance * high:
        middle = (low + high) / 2
        if meets(middle):
            low = middle
        else:
            high = middle
    return low


_MAX_RATE_PER_S = 10_000.0
_STUDENT_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Two-sided 95% quantiles of Student's t for 1, 2, ... degrees of freedom."""


def mean_and_interval(values: Sequence[float]) -> dict[str, Any]:
    """Mean, and its 95% confidence interval; a single value has no width."""
    mean = float(np.mean(values))
    if len(values) == 1:
        return {"mean": mean, "interval": [mean, mean]}
    quantile = _STUDENT_95[min(len(values) - 1, len(_STUDENT_95)) - 1]
    half = quantile * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return {"mean": mean, "interval": [mean - half, mean + half]}


def main(arguments: Sequence[str]) -> int:
    """The command line. Returns the exit code."""
    return run_command("capacity", CapacityConfig, run, arguments)
