"""Errors of a prediction against repeated runs of an engine.

A simulator predicts what a request may expect, so it is compared with the mean over several runs of
the engine. The mean and not the median, on both sides: a latency is a sum of step times, and only
means add up; fitted step times are means too. Beside it stand what shows how much of an error is
the engine's own noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_adapters.validation.fidelity import error
from scheduler_adapters.workload.requests import Floats


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
    floor = None
    if count > 1:
        others = (runs.sum(axis=0) - runs) / (count - 1)
        floor = _mape(runs, others)
    return RepeatedError(
        mape=overall.mape_fraction,
        single_run_mape=_mape(simulated, runs),
        floor_mape=floor,
        noise_mape=None if floor is None else floor * (count - 1) ** 0.5 / count,
        bias=overall.bias_fraction,
        mean_s_measured=float(mean.mean()),
        mean_s_simulated=float(simulated.mean()),
    )


def _mape(predicted: Floats, real: Floats) -> float:
    return float(np.mean(np.abs(predicted - real) / real))
