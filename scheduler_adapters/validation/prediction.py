"""Prediction of a real burst: served by transformers, and simulated with step times fitted to it.

Step times are fitted to the engine's steps under the first policy only. Every policy is then
simulated with these, and compared request by request.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.validation.errors import METRICS, error, latencies
from scheduler_adapters.validation.graph_fit import GraphFit
from scheduler_adapters.workload.requests import Requests

MEANS: Final = (*METRICS, "normalized_latency")


@dataclass(frozen=True, kw_only=True)
class Served:
    """The run of an engine on a burst under one policy."""

    requests: Requests
    """Sent requests with their scores; ids are their numbers."""
    timeline: Timeline
    """Timeline of the same requests, in any order."""
    steps: Sequence[StepRecord]
    has_graphs: bool = False
    """True if the engine captured CUDA graphs of its steps."""
    instance_with: Callable[[LatencyModel], Instance]
    """An instance with the limits of the engine and these step times."""


def predict(run: Served, policy: Policy, fit: GraphFit) -> tuple[dict[str, float], pd.DataFrame]:
    """Simulate a run under a fresh `policy` with fitted step times, and compare.

    Returns:
        Means of the simulation and errors of METRICS by name, and one row per request with
        NAME_measured_s and NAME_simulated_s for each of METRICS. Raises as `simulate` does.
    """
    simulated = simulate(run.requests, policy, run.instance_with(fit.latency()))
    summary, ours, theirs = summarize(simulated), _by_id(simulated), _by_id(run.timeline)
    row = {f"simulated_{name}_mean_s": getattr(summary, f"{name}_s").mean for name in MEANS}
    row["simulated_makespan_s"] = summary.makespan_s
    for metric in METRICS:
        mape, bias = error(ours[metric].to_numpy(), theirs.loc[ours.index, metric].to_numpy())
        row |= {f"{metric}_mape_fraction": mape, f"{metric}_bias_fraction": bias}
    return row, ours.add_suffix("_simulated_s").join(theirs.add_suffix("_measured_s"))


def _by_id(timeline: Timeline) -> pd.DataFrame:
    ids = pd.Index(timeline.requests.request_id, name="request_id")
    return pd.DataFrame(latencies(timeline), index=ids)
