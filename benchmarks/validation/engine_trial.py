"""A trial of the simulator: a trace on a real engine, and the same trace simulated.

The trace is cut into pieces. A latency model is fitted to the steps of every other piece. The
pieces between are simulated under the same policy, and compared request by request. Runs of the
engine are compared by their mean: a latency is a sum of step times, and only means add up.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any, Final

import numpy as np

from benchmarks.validation.step_fit import fit_steps, mape
from lengthwise.progress import Progress
from lengthwise.settings import Count, settings
from scheduler_adapters.engines.engine_clock import ClockKind
from scheduler_adapters.engines.vllm_v1.in_process import VllmDriver
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.latency_metrics import tpot_s
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Floats, Requests

METRICS: Final = {"e2e": Timeline.e2e_s, "tpot": tpot_s, "ttft": Timeline.ttft_s}


@settings
class TrialConfig:
    """The cut of the trace and the number of runs."""

    pieces: int = 10
    """Parts of the trace; every other one is for the fit. Each starts on an idle engine."""
    repeats: Count = 4
    """Runs of every piece by the engine; the prediction is of their mean."""
    clock: ClockKind | None = None
    """"wall" counts all time. "cpu" counts this process's CPU seconds, without idle time and
    without other load on the machine. "steady" corrects these for the machine's speed, measured by
    a fixed piece of work before every step. Left out, it is "steady" for an engine that computes in
    one CPU thread, and "wall" for any other."""
    seed: int = 0
    """Of the synthetic trace, the prompts and the order of the pieces."""


class StepRecorder(EngineObserver):
    """Collects the steps of an engine."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []

    def measured(self, step: StepRecord) -> None:
        self.steps.append(step)


def run_trial(
    driver: VllmDriver,
    requests: Requests,
    name: str,
    make_policy: Callable[[], Policy],
    config: TrialConfig,
) -> dict[str, Any]:
    """Serve the requests with a real engine, simulate them, and compare.

    `make_policy` makes the policy `name` that the engine runs. Raises DataError for too few steps.

    Returns:
        A flat record: policy, clock, compared requests, repeats, and the errors of each of METRICS
        as `e2e_mape`. `step_mape` is the error of the fitted step times on their own steps.
    """
    clock, runs, steps = measure(driver, requests, config)
    latency, step_mape = fit_steps(steps)
    instance = Instance(latency=latency, **driver.limits)
    simulated = _latencies(
        [simulate(served.requests, make_policy(), instance) for served in runs[0]]
    )
    measured = [_latencies(run) for run in runs]
    errors = {
        name: against_repeats(simulated[name], np.stack([run[name] for run in measured]))
        for name in METRICS
    }
    return {
        "policy": name,
        "clock": clock,
        "num_requests": len(simulated["e2e"]),
        "repeats": config.repeats,
        **{f"{m}_{key}": number for m in METRICS for key, number in asdict(errors[m]).items()},
        "step_mape": step_mape,
        "num_steps_fitted": len(steps),
    }


def measure(
    driver: VllmDriver, requests: Requests, config: TrialConfig
) -> tuple[ClockKind, list[list[Timeline]], list[StepRecord]]:
    """Serve all pieces of the requests in each repeat.

    Returns the clock, the compared pieces of each repeat in the order of the trace, and the steps
    of the pieces between them.
    """
    pieces = [
        replace(piece, arrival_s=piece.arrival_s - piece.arrival_s[0])
        for rows in np.array_split(np.arange(len(requests)), config.pieces)
        for piece in [requests.take(rows)]
    ]
    kind, clock = driver.clock(config.clock)
    dice, prompt_seeds = np.random.default_rng(config.seed), count(config.seed)
    runs: list[list[Timeline]] = []
    steps: list[StepRecord] = []
    with Progress(config.repeats * len(pieces)) as progress:
        for repeat in range(config.repeats):
            served: dict[int, tuple[Timeline, list[StepRecord]]] = {}
            for number in order_in_pairs(len(pieces), dice):
                recorder, seed = StepRecorder(), next(prompt_seeds)
                timeline = driver.serve(
                    pieces[number], clock=clock, seed=seed, observers=[recorder]
                )
                served[number] = timeline, recorder.steps
                progress.step(f"repeat {repeat + 1}, piece {number + 1}")
            runs.append([served[number][0] for number in range(1, len(pieces), 2)])
            steps += [step for number in range(0, len(pieces), 2) for step in served[number][1]]
    return kind, runs, steps


def order_in_pairs(num_pieces: int, dice: np.random.Generator) -> list[int]:
    """Return the pieces in pairs of neighbours (0 and 1, 2 and 3), the pairs in random order."""
    # A machine's speed is nearly the same for a piece of the fit and the compared one after it.
    firsts = 2 * dice.permutation((num_pieces + 1) // 2)
    return [
        piece for first in firsts.tolist() for piece in (first, first + 1) if piece < num_pieces
    ]


def _latencies(timelines: Sequence[Timeline]) -> dict[str, Floats]:
    """Return each of METRICS per request, seconds; NaN where it is undefined."""
    return {name: np.concatenate([*map(of, timelines)]) for name, of in METRICS.items()}


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
