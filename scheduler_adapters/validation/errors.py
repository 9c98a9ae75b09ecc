"""Errors of simulated latencies against measured ones, of one run of an engine or of several.

A simulator predicts what a request may expect, so where there are several runs of the engine it is
compared with their mean. The mean and not the median, on both sides: a latency is a sum of step
times, and only means add up; fitted step times are means too. Beside it stands what shows how much
of an error is the engine's own noise.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler_adapters.timeline.latency_metrics import tpot_s
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Floats

METRICS: Final = ("ttft", "tpot", "e2e")


def latencies(timeline: Timeline) -> dict[str, Floats]:
    """Return each of METRICS per request, seconds; NaN where it is undefined."""
    return {"ttft": timeline.ttft_s(), "tpot": tpot_s(timeline), "e2e": timeline.e2e_s()}


def mape(simulated: Floats, real: Floats) -> float:
    """Return the mean of |simulated - real| / real over values that are all known."""
    return float(np.mean(np.abs(simulated - real) / real))


@dataclass(frozen=True, kw_only=True, slots=True)
class Error:
    """Of one metric over all requests: fractions of the real value."""

    mape_fraction: float
    """Mean of |simulated - real| / real."""
    bias_fraction: float
    """(mean simulated - mean real) / mean real; above 0: the simulator is slower."""


def error(simulated: Floats, real: Floats) -> Error:
    """Return the error over the pairs (N,) where both are known."""
    known = ~np.isnan(simulated) & ~np.isnan(real)
    simulated, real = simulated[known], real[known]
    bias = float(simulated.mean() / real.mean() - 1)
    return Error(mape_fraction=mape(simulated, real), bias_fraction=bias)


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatedError:
    """Of one metric: means over requests of |prediction - reality| / reality, as fractions."""

    mape: float
    """The simulation against the mean of all runs of the engine."""
    single_run_mape: float
    """The simulation against one run, in the mean over the runs."""
    floor_mape: float | None
    """One run of the engine against the mean of its other runs, in the mean over the runs: the
    engine itself in the simulator's place. None for a single run."""
    noise_mape: float | None
    """About what a simulator without error would show as `mape`, because the mean of R runs is
    still uncertain: floor * sqrt(R - 1) / R, for runs that err independently."""
    bias: float
    """(mean simulated - mean measured) / mean measured; above 0: the simulator is slower."""
    mean_s_measured: float
    mean_s_simulated: float


def against_repeats(simulated: Floats, runs: Floats) -> RepeatedError:
    """Compare one simulation with R runs of the engine.

    Args:
        simulated: a latency per request, seconds, shape (N,); NaN where it is undefined.
        runs: the same as measured, shape (R, N); NaN for the same requests in every run.
    """
    defined = ~np.isnan(runs[0])
    simulated, runs = simulated[defined], runs[:, defined]
    mean, count = runs.mean(axis=0), len(runs)
    overall = error(simulated, mean)
    floor = mape(runs, (runs.sum(axis=0) - runs) / (count - 1)) if count > 1 else None
    return RepeatedError(
        mape=overall.mape_fraction,
        single_run_mape=mape(simulated, runs),
        floor_mape=floor,
        noise_mape=None if floor is None else floor * (count - 1) ** 0.5 / count,
        bias=overall.bias_fraction,
        mean_s_measured=float(mean.mean()),
        mean_s_simulated=float(simulated.mean()),
    )
