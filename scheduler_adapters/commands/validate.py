"""Does the simulator tell the truth? A trace on the real engine, and the same trace simulated.

The trace is cut into pieces. In every other piece each step of vLLM is recorded with its size and
duration, and a latency model is fitted to these. The pieces between, which the fit has not seen,
are simulated under the same policy, and the latencies are compared request by request. The
decisions that vLLM took in them are replayed through the policy.

vLLM serves all pieces several times. A piece for the fit and the piece after it stay together,
since a machine's speed is nearly the same for neighbours in time; the order of the pairs is another
in each repeat, so that a slow minute does not meet the same requests again. `repeated_runs.py` says
what is compared. Arrivals are in the clock's time, so a slower run of a
piece makes other steps than a faster one; that belongs to what the mean is taken over.

Where few seats are the bottleneck, whether a request gets the seat that falls free now or the next
one turns on milliseconds, and changes its TTFT manyfold. One simulation then is no more of a mean
than one run of the engine is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from scheduler_adapters.engines.engine_clock import (
    ClockKind,
    EngineClock,
    clock_of,
    make_clock,
)
from scheduler_adapters.engines.tiny_model import make_tiny_model
from scheduler_adapters.engines.vllm_v1.additional_config import SETTINGS, configured_policy
from scheduler_adapters.engines.vllm_v1.offline import (
    STOCK,
    OfflineConfig,
    longest_context,
    open_engine,
    scheduler_of,
    set_environment,
    warm_up,
)
from scheduler_adapters.engines.vllm_v1.recording import Recording, record
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policy import Policy
from scheduler_adapters.progress import Progress
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.metrics import tpot_s
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.validation.decision_replay import replay
from scheduler_adapters.validation.repeated_runs import RepeatedError, against_repeats
from scheduler_adapters.validation.step_fit import StepFit, fit_steps
from scheduler_adapters.workload.arrivals import poisson_arrivals_s
from scheduler_adapters.workload.requests import Floats, Requests, make_requests
from scheduler_adapters.workload.traces import read_trace
from scoring_service.errors import ConfigError

_MIN_REQUESTS: Final = 20
METRICS: Final = ("e2e", "tpot", "ttft")


@dataclass(frozen=True, kw_only=True)
class ValidateConfig:
    """The trace, the engine and the clock."""

    policy: str = "pars"
    """Name or import path of the policy; "stock" is vLLM's own scheduler, simulated as FCFS."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the policy takes."""
    trace: Path | None = None
    """Requests (.jsonl, .csv, .parquet); left out, a synthetic trace is made."""
    num_requests: int = 200
    """Of the synthetic trace, or the first ones of the file."""
    pieces: int = 10
    """The trace is cut into; every other one is for the fit. Each starts on an idle engine."""
    repeats: int = 4
    """How often vLLM serves every piece. A prediction is of the mean, which one run is not; the
    default is what fits into 4 minutes on two CPU cores."""
    rate_per_s: float = 5.0
    """Poisson arrivals of the synthetic trace."""
    max_num_seqs: int = 32
    """Requests that run at once."""
    model: Path | None = None
    """Folder of a model; left out, a random one is made for the run."""
    shape: Literal["tiny", "small"] = "small"
    """Of the random model. A step of the tiny one takes as long as the engine's Python does."""
    kv_cache_mib: int = 256
    """Memory for KV blocks."""
    clock: ClockKind | None = None
    """"wall" counts all; "cpu" this process's CPU seconds, without idle time, so that the load of
    others on the machine is not counted as the engine's; "steady" the same as if the machine stayed
    as fast as at first, told by a fixed piece of work before every step. Left out, it is "steady"
    for an engine that computes in one CPU thread, and "wall" for any other."""
    figures: Path | None = None
    """Folder for a figure per metric, simulated against measured with the range of the repeats, and
    the table it was drawn from: e2e.svg, e2e.csv, tpot.svg, ..."""
    seed: int = 0
    """Of the synthetic trace."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        if self.num_requests < _MIN_REQUESTS:
            raise ConfigError(f"num_requests is {self.num_requests}; use {_MIN_REQUESTS} or more")
        if not 2 <= self.pieces <= self.num_requests // 5:
            raise ConfigError(f"pieces is {self.pieces}; use 2 to {self.num_requests // 5}")
        if self.repeats < 1:
            raise ConfigError(f"repeats is {self.repeats}; use 1 or more")
        if not self.rate_per_s > 0:
            raise ConfigError(f"rate_per_s is {self.rate_per_s}; use a rate above 0")


@dataclass(frozen=True, kw_only=True)
class Validation:
    """How far the simulator is from the engine, and the engine from itself."""

    policy: str
    clock: ClockKind
    num_requests: int
    """That were compared; about as many others served for the fit."""
    repeats: int
    e2e: RepeatedError
    tpot: RepeatedError
    ttft: RepeatedError
    step_mape: float
    """Of the fitted step times, on the steps they were fitted to."""
    num_steps_fitted: int
    decisions_replayed: int
    """Admissions of the compared pieces; 0 under vLLM's own scheduler, which records none."""
    decisions_equal_fraction: float
    """Of these, how many were of the request that the policy, asked again, ranks first."""

    def to_dict(self) -> dict[str, Any]:
        """Flat: `e2e_mape`, `e2e_single_run_mape`, ..."""
        flat: dict[str, Any] = {}
        for name, value in asdict(self).items():
            flat |= (
                {f"{name}_{key}": number for key, number in value.items()}
                if name in METRICS
                else {name: value}
            )
        return flat


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """What vLLM did: its runs of the compared pieces, and the steps of the others."""

    clock: ClockKind
    runs: Sequence[Sequence[Recording]]
    """Of each repeat, the compared pieces in the order of the trace."""
    fit: StepFit
    instance: Instance
    """Like the engine, with the fitted step times."""


def validate(config: ValidateConfig) -> None:
    """Serve a trace with vLLM and simulate it; print how far apart the latencies are.

    python -m scheduler_adapters validate --policy pars --figures figures

    vLLM serves each piece of the trace --repeats times. Step times are fitted on one half of the
    pieces; the other half, which the fit never sees, is simulated and compared per request. Read
    the table from left to right: the error against the mean of the repeats (e2e_mape in --json);
    the part of it that even a perfect simulator would show, since that mean is uncertain
    (e2e_noise_mape); the error against single runs (e2e_single_run_mape); and the error of the
    engine itself as its own simulator, one run against the mean of the others (e2e_floor_mape).
    """
    _policy(config)  # a wrong name or setting is told before torch and vLLM are loaded
    measured = _measure(_requests(config), config)
    first = [recording.timeline.requests for recording in measured.runs[0]]
    simulated = _latencies([simulate(piece, _policy(config), measured.instance) for piece in first])
    by_run = [_latencies([each.timeline for each in run]) for run in measured.runs]
    runs = {name: np.stack([latencies[name] for latencies in by_run]) for name in METRICS}
    result = _compare(config, measured, simulated, runs)
    if config.figures is not None:
        names = np.concatenate([piece.request_id for piece in first])
        _draw(names, simulated, runs, config.figures)
    print(json.dumps(result.to_dict()) if config.json else _table(result))


def _measure(requests: Requests, config: ValidateConfig) -> _Measured:
    pieces = [_from_zero(piece) for piece in _cut(requests, config.pieces)]
    set_environment()  # before the model is made, which imports torch
    with TemporaryDirectory(prefix="lengthwise-") as folder:
        model = config.model or make_tiny_model(Path(folder), shape=config.shape)
        offline = OfflineConfig(
            scheduler=config.policy,
            settings=config.settings,
            max_num_seqs=config.max_num_seqs,
            kv_cache_mib=config.kv_cache_mib,
            model=model,
        )
        with open_engine(offline, max_model_len=longest_context(requests)) as engine:
            warm_up(engine)
            clock = clock_of(engine, config.clock)
            runs = _repeat(engine, pieces, config, make_clock(clock))
            fit = fit_steps([step for run in runs for each in run[::2] for step in each.steps])
            instance = _instance_like(engine, fit)
    return _Measured(clock=clock, runs=[run[1::2] for run in runs], fit=fit, instance=instance)


def _repeat(
    engine: Any, pieces: Sequence[Requests], config: ValidateConfig, clock: EngineClock
) -> list[list[Recording]]:
    """A recording of every piece, in the order of the trace, for each repeat."""
    dice, prompt_seeds = np.random.default_rng(config.seed), count(config.seed)
    runs = []
    with Progress(config.repeats * len(pieces)) as progress:
        for repeat in range(config.repeats):
            recorded: dict[int, Recording] = {}
            for number in order_in_pairs(len(pieces), dice):
                piece, seed = pieces[number], next(prompt_seeds)
                recorded[number] = record(engine, piece, clock=clock, seed=seed)
                progress.step(f"repeat {repeat + 1}, piece {number + 1}")
            runs.append([recorded[number] for number in range(len(pieces))])
    return runs


def order_in_pairs(num_pieces: int, dice: np.random.Generator) -> list[int]:
    """Pieces 0 and 1 next to each other, 2 and 3, ...; the pairs in random order."""
    firsts = 2 * dice.permutation((num_pieces + 1) // 2)
    return [
        piece for first in firsts.tolist() for piece in (first, first + 1) if piece < num_pieces
    ]


def _requests(config: ValidateConfig) -> Requests:
    if config.trace is not None:
        requests = read_trace(config.trace, limit=config.num_requests)
        if len(requests) < _MIN_REQUESTS:
            raise ConfigError(
                f"{config.trace} has {len(requests)} requests; give {_MIN_REQUESTS} or more"
            )
        return requests
    dice = np.random.default_rng(config.seed)
    count = config.num_requests
    output_tokens = np.clip(dice.lognormal(4.5, 0.7, count), 4, 600).astype(int)
    return make_requests(
        prompt_tokens=dice.integers(8, 400, count),
        output_tokens=output_tokens,
        arrival_s=poisson_arrivals_s(count, rate_per_s=config.rate_per_s, seed=config.seed),
        scores=output_tokens * dice.lognormal(0.0, 0.4, count),
    )


def _cut(requests: Requests, pieces: int) -> list[Requests]:
    return [requests.take(rows) for rows in np.array_split(np.arange(len(requests)), pieces)]


def _from_zero(requests: Requests) -> Requests:
    return replace(requests, arrival_s=requests.arrival_s - requests.arrival_s[0])


def _policy(config: ValidateConfig) -> Policy:
    if config.policy == STOCK:
        return FCFS()
    return configured_policy({SETTINGS: {"policy": config.policy, **config.settings}})


def _instance_like(engine: Any, fit: StepFit) -> Instance:
    scheduler = scheduler_of(engine)
    return Instance(
        latency=fit.latency,
        kv_blocks=scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1,
        max_num_seqs=scheduler.max_num_active_reqs,
        max_tokens=scheduler.max_num_scheduled_tokens,
        block_tokens=scheduler.block_size,
        watermark_fraction=0.0,
    )


def _compare(
    config: ValidateConfig,
    measured: _Measured,
    simulated: Mapping[str, Floats],
    runs: Mapping[str, Floats],
) -> Validation:
    recorded = [recording for run in measured.runs for recording in run]
    replayed = [replay(_policy(config), recording.decisions) for recording in recorded]
    num_admissions = sum(agreement.num_admissions for agreement in replayed)
    num_equal = sum(agreement.num_equal for agreement in replayed)
    return Validation(
        policy=config.policy,
        clock=measured.clock,
        num_requests=len(simulated["e2e"]),
        repeats=config.repeats,
        **{name: against_repeats(simulated[name], runs[name]) for name in METRICS},
        step_mape=measured.fit.mape_fraction,
        num_steps_fitted=measured.fit.num_steps,
        decisions_replayed=num_admissions,
        decisions_equal_fraction=num_equal / max(1, num_admissions),
    )


def _latencies(timelines: Sequence[Timeline]) -> dict[str, Floats]:
    """Per request, seconds, over all pieces."""
    columns = {
        "e2e": [run.finished_s - run.requests.arrival_s for run in timelines],
        "ttft": [run.first_token_s - run.requests.arrival_s for run in timelines],
        "tpot": [tpot_s(run) for run in timelines],
    }
    return {name: np.concatenate(values) for name, values in columns.items()}


def _table(result: Validation) -> str:
    lines = [
        f"{result.policy}: {result.num_requests} requests that the fit has not seen, each served "
        f"{result.repeats} times by vLLM and simulated once; seconds of the {result.clock} clock",
        "",
        f"{'':6}{'error':>8}{'of it noise':>13}{'single runs':>13}{'vLLM itself':>13}{'bias':>8}"
        f"{'measured, s':>13}{'simulated, s':>14}",
    ]
    for name in METRICS:
        error: RepeatedError = getattr(result, name)
        lines.append(
            f"{name.upper():6}{_percent(error.mape):>8}{_percent(error.noise_mape):>13}"
            f"{_percent(error.single_run_mape):>13}{_percent(error.floor_mape):>13}"
            f"{error.bias:>+8.1%}{error.mean_s_measured:>13.4g}{error.mean_s_simulated:>14.4g}"
        )
    return "\n".join(
        [
            *lines,
            "",
            f"steps: {result.num_steps_fitted} of the other requests fitted, "
            f"{result.step_mape:.1%} off in the mean",
            f"decisions: the policy, asked again, admits the same request in "
            f"{result.decisions_equal_fraction:.1%} of {result.decisions_replayed}",
        ]
    )


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:.1%}"


def _draw(
    names: NDArray[Any],
    simulated: Mapping[str, Floats],
    runs: Mapping[str, Floats],
    folder: Path,
) -> None:
    import pandas as pd

    from scheduler_adapters.reporting.figures import agreement_figure, save_figure
    from scheduler_adapters.reporting.page import save_table

    folder.mkdir(parents=True, exist_ok=True)
    for name in METRICS:
        table = pd.DataFrame(
            {
                "request_id": names,
                "measured_s": runs[name].mean(axis=0),
                "lowest_s": runs[name].min(axis=0),
                "highest_s": runs[name].max(axis=0),
                "simulated_s": simulated[name],
            }
        )
        save_table(table, folder / f"{name}.csv")
        save_figure(agreement_figure(table, name.upper()), folder / f"{name}.svg")
