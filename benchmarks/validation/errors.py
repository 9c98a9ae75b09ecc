"""Errors of simulated latencies against measured ones, of several runs of an engine.

The runs are compared by their mean: a latency is a sum of step times, and only means add up.
"""

from dataclasses import dataclass

import numpy as np

from scheduler_adapters.workload.requests import Floats


def mape(simulated: Floats, real: Floats) -> float:
    """Return the mean of |simulated - real| / real over values that are all known."""
    return float(np.mean(np.abs(simulated - real) / real))


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatedError:
    """Errors of one metric: means over requests of |simulated - measured| / measured."""

    mape: float
    """Against the mean of all runs of the engine."""
    single_run_mape: float
    """Against one run, mean over the runs."""
    floor_mape: float | None
    """One run of the engine against the mean of its other runs; None for a single run."""
    noise_mape: float | None
    """`mape` of an exact simulator, as the mean of R runs is uncertain: floor * sqrt(R - 1) / R."""
    bias: float
    """(mean simulated - mean measured) / mean measured; above 0: the simulator is slower."""
    mean_s_measured: float
    mean_s_simulated: float


def against_repeats(simulated: Floats, runs: Floats) -> RepeatedError:
    """Compare one simulation (N,) with R runs of the engine (R, N).

    Values are a latency in seconds, NaN for the same requests in all.
    """
    defined = ~np.isnan(runs[0])
    simulated, runs = simulated[defined], runs[:, defined]
    mean, count = runs.mean(axis=0), len(runs)
    floor = mape(runs, (runs.sum(axis=0) - runs) / (count - 1)) if count > 1 else None
    return RepeatedError(
        mape=mape(simulated, mean),
        single_run_mape=mape(simulated, runs),
        floor_mape=floor,
        noise_mape=None if floor is None else floor * (count - 1) ** 0.5 / count,
        bias=float(simulated.mean() / mean.mean() - 1),
        mean_s_measured=float(mean.mean()),
        mean_s_simulated=float(simulated.mean()),
    )
