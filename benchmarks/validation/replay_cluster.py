"""`replay-cluster`: the record of a cluster's gateway beside the same requests, simulated."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from lengthwise.command_line.options import POSITIONAL, common_options
from lengthwise.strict_json import to_json
from scheduler_adapters.policy import load_policy
from scheduler_adapters.reporting.latency_tables import text_of
from scheduler_adapters.simulator.cluster.cluster_config import ClusterConfig
from scheduler_adapters.simulator.cluster.placement_views import TelemetryAge
from scheduler_adapters.simulator.instance_config import check_memory
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.timeline.timeline import Timeline, read_timeline
from scheduler_adapters.workload.requests import Requests

_TIMES: Final = ("ttft_s", "first_answer_s", "ttfat_s", "tpot_s", "e2e_s")
_PARTS: Final = ("mean", "p50", "p90", "p99")
_RATES: Final = ("makespan_s", "output_tokens_per_s", "qoe.mean", "qoe_violations")


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(ClusterConfig):
    """A record, and the cluster that served it."""

    record: Path = field(metadata=POSITIONAL)
    """Record of a gateway (.jsonl), or any timeline with token times."""
    placement: str | None = "pascal"
    """Name or import path of the gateway's placement."""
    instances: int = 3
    """Replicas behind the gateway."""
    policy: str = "fcfs"
    """Name or import path of the policy in each replica."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the policy."""
    telemetry_period_s: float = 0.2
    """Time between two reports of a replica."""
    keeps_kv: bool = False
    """Moves between phases take the KV along, instead of a computation in the new instance."""
    json: bool = False
    """Print one JSON object."""


@common_options("record", "placement", "instances", "policy", "settings", "profile", "json")
def run(config: ReplayConfig) -> None:
    """Simulate the requests of a record, and print the error of every figure.

    The gateway writes a record if its configuration names a file in `record`. Profile and limits
    must be those of the replicas. Aborted requests are not in a record, so neither run has them.

    Example:
      python -m benchmarks replay-cluster record.jsonl --profile llama-3-8b@a100-80g
    """
    measured = read_timeline(config.record)
    check_memory(measured.requests, config.instance())
    rows = figure_errors(measured, simulated(config, measured.requests))
    if config.json:
        print(to_json({row.figure: row._asdict() for row in rows}))
    else:
        print(text_of(pd.DataFrame(rows)))


def simulated(config: ReplayConfig, requests: Requests) -> Timeline:
    """Return the timeline of requests on the simulated cluster."""
    return config.serve(
        requests,
        partial(load_policy, config.policy, **config.settings),
        age=TelemetryAge(period_s=config.telemetry_period_s),
        keeps_kv=config.keeps_kv,
    )[0]


class FigureError(NamedTuple):
    """One figure of both runs."""

    figure: str
    measured: float
    simulated: float
    error: float
    """simulated / measured - 1; NaN if the measured figure is 0."""


def figure_errors(measured: Timeline, simulated: Timeline) -> Sequence[FigureError]:
    """Return the latencies, rates, moves and the shares of instances of two runs side by side.

    Shares are sorted, as a real replica has no number. Figures that a run lacks are left out.
    """
    both = [_figures(measured), _figures(simulated)]
    rows = [(name, number, both[1].get(name, np.nan)) for name, number in both[0].items()]
    return [
        FigureError(name, real, ours, ours / real - 1 if real else np.nan)
        for name, real, ours in rows
        if isfinite(real) and isfinite(ours)
    ]


def _figures(timeline: Timeline) -> dict[str, float]:
    flat = summarize(timeline).flat()
    names = [f"{time}.{part}" for time in _TIMES for part in _PARTS]
    counts = np.sort(np.bincount(timeline.instance))[::-1] / max(1, len(timeline.instance))
    shares = {f"share of instance {n}": share for n, share in enumerate(counts.tolist(), 1)}
    moves = {"moves per request": float(timeline.migrations.mean())}
    return {name: flat[name] for name in (*names, *_RATES)} | moves | shares
