"""Prediction of a real burst: served by transformers, and simulated with step times fitted to it.

Step times are fitted to the engine's steps under the first policy only. Every policy is then
simulated with these, and compared request by request.

On a GPU, transformers captures CUDA graphs. It pads the tokens of a step, and the cached tokens
that they attend to, to multiples. The first step of a pair of padded sizes captures a graph, which
takes several times as long. These steps occur early in a run, while contexts are short, and would
spoil the fit. Where one request grows past 1,024 tokens or a power of two above, all sizes are
captured anew: this is not modelled.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

import numpy as np
import pandas as pd

from scheduler_adapters.engines.transformers_batching.in_process import (
    GRAPH_PAST_TOKENS,
    GRAPH_TOKENS,
)
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.timeline.steps import Chunk, StepRecord
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.validation.errors import METRICS, error, latencies
from scheduler_adapters.validation.step_fit import StepFit, fit_steps
from scheduler_adapters.workload.requests import Requests

MEANS: Final = (*METRICS, "normalized_latency")
Size = tuple[int, int]
"""Multiples of `GRAPH_TOKENS` computed, and of `GRAPH_PAST_TOKENS` read."""


@dataclass(kw_only=True)
class CapturingLatency(LatencyModel):
    """Step times of another model, plus a time for each new graph; for one simulation only."""

    replayed: LatencyModel
    """Times of steps whose graph exists."""
    capture_s: float
    _captured: set[Size] = field(default_factory=set)

    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        tokens = num_decodes + sum(chunk for _, chunk in prefills)
        past = decode_context - num_decodes + sum(processed for processed, _ in prefills)
        seconds = self.replayed.step_s(num_decodes, decode_context, prefills)
        if (size := _padded(tokens, past)) not in self._captured:
            self._captured.add(size)
            seconds += self.capture_s
        return seconds


@dataclass(frozen=True, kw_only=True)
class GraphFit:
    """Step times of an engine, and the cost of a graph."""

    steps: StepFit
    """Of steps in which no graph was captured."""
    num_captures: int = 0
    capture_s: float = 0.0
    """Seconds of a step with a capture beyond the median of the others."""

    def latency(self) -> LatencyModel:
        """Return the step times of an engine that has no graph yet."""
        if not self.num_captures:
            return self.steps.latency
        return CapturingLatency(replayed=self.steps.latency, capture_s=self.capture_s)


def fit_graphs(steps: Sequence[StepRecord], *, has_graphs: bool) -> GraphFit:
    """Fit step times to all steps of a run of a new engine, in order; raises as `fit_steps`."""
    if not has_graphs:
        return GraphFit(steps=fit_steps(steps))
    captures: list[StepRecord] = []
    replays: list[StepRecord] = []
    met = set()
    for step in steps:
        size = _size(step)
        (replays if size in met else captures).append(step)
        met.add(size)
    fit = fit_steps(replays)
    usual_s = np.median([step.seconds for step in replays])
    beyond_s = float(np.mean([step.seconds for step in captures]) - usual_s)
    return GraphFit(steps=fit, num_captures=len(captures), capture_s=max(0.0, beyond_s))


def _padded(tokens: int, past: float) -> Size:
    return ceil(tokens / GRAPH_TOKENS), max(1, ceil(past / GRAPH_PAST_TOKENS))


def _size(step: StepRecord) -> Size:
    past = float(step.decode_context - step.num_decodes)
    if step.num_prefills == 1:  # of several, nearly always all but one start here
        past += step.attention_pairs / step.prefill_tokens - step.prefill_tokens / 2
    return _padded(step.num_decodes + step.prefill_tokens, past)


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
