"""`replay-cluster`: the record of a cluster's gateway beside the same requests, simulated."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.validation.cluster_errors import figure_errors
from lengthwise.command_line.options import POSITIONAL, common_options
from lengthwise.strict_json import to_json
from scheduler_adapters.policy import load_policy
from scheduler_adapters.reporting.latency_tables import text_of
from scheduler_adapters.simulator.cluster.cluster_config import ClusterConfig
from scheduler_adapters.simulator.cluster.placement_views import TelemetryAge
from scheduler_adapters.simulator.instance_config import check_memory
from scheduler_adapters.timeline.timeline import Timeline, read_timeline
from scheduler_adapters.workload.requests import Requests


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
