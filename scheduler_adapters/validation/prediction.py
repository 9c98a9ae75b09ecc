"""Prediction of a real burst: served by transformers, and simulated with step times fitted to it.

Step times are fitted to the engine's steps under one policy. Every policy is then simulated with
these, on the same requests and within the engine's limits. Simulated and measured latencies are
compared request by request. Only the first run is used for the fit: measured under FCFS, the result
is the prediction of PARS before its deployment. The first run's own row shows the error of fit and
simulator on the fitted run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.latency_metrics import Summary, summarize
from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.validation.errors import METRICS, Error, error, latencies
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


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """One policy, simulated."""

    summary: Summary
    per_request: pd.DataFrame
    """Columns request_id and, for each of METRICS, NAME_measured_s and NAME_simulated_s."""
    errors: Mapping[str, Error]
    """Of each of METRICS, mean over the requests."""

    def to_row(self) -> dict[str, Any]:
        """Flat, to stand beside the measured figures."""
        row: dict[str, Any] = {
            f"simulated_{name}_mean_s": getattr(self.summary, f"{name}_s").mean for name in MEANS
        }
        row["simulated_makespan_s"] = self.summary.makespan_s
        for name, value in self.errors.items():
            row[f"{name}_mape_fraction"] = value.mape_fraction
            row[f"{name}_bias_fraction"] = value.bias_fraction
        return row


def predict(run: Served, policy: Policy, fit: GraphFit) -> Predicted:
    """Simulate a run with step times fitted to it or to another, and compare.

    Args:
        policy: a fresh one, as the run had it.

    Raises:
        InvalidDecision, SchedulingError: as `simulate` does.
    """
    simulated = simulate(run.requests, policy, run.instance_with(fit.latency()))
    ours, theirs = _by_id(simulated), _by_id(run.timeline)
    return Predicted(
        summary=summarize(simulated),
        per_request=ours.add_suffix("_simulated_s").join(theirs.add_suffix("_measured_s")),
        errors={
            metric: error(ours[metric].to_numpy(), theirs.loc[ours.index, metric].to_numpy())
            for metric in METRICS
        },
    )


def _by_id(timeline: Timeline) -> pd.DataFrame:
    """Return the latencies by request id."""
    ids = pd.Index(timeline.requests.request_id, name="request_id")
    return pd.DataFrame(latencies(timeline), index=ids)
