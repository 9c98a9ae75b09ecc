"""Does the simulator tell the truth? A trace on the real engine, and the same trace simulated.

The trace is cut into pieces. In every other piece each step of vLLM is recorded with its size and
duration, and a latency model is fitted to these. The pieces between, which the fit has not seen,
are served by vLLM and simulated under the same policy, and the latencies are compared request by
request. Pieces that alternate see the same machine, even where its speed drifts. The decisions that
vLLM took in them are replayed through the policy.

Where few seats are the bottleneck, whether a request gets the seat that falls free now or the next
one turns on milliseconds, and changes its TTFT manyfold. `rerun` shows how far two runs of the
engine itself are apart there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from scheduler_adapters.command_line import run_command
from scheduler_adapters.engines.decision_replay import replay
from scheduler_adapters.engines.settings import SETTINGS, make_policy
from scheduler_adapters.engines.step_fit import StepFit, StepRecord, fit_steps
from scheduler_adapters.engines.tiny_model import make_tiny_model
from scheduler_adapters.engines.vllm_offline import (
    STOCK,
    OfflineConfig,
    longest_context,
    open_engine,
    scheduler_of,
    warm_up,
)
from scheduler_adapters.engines.vllm_recording import ClockKind, Recording, record
from scheduler_adapters.experiments.metrics import tpot_s
from scheduler_adapters.experiments.timeline import Timeline
from scheduler_adapters.experiments.workload import (
    Floats,
    Requests,
    make_requests,
    poisson_arrivals_s,
    read_trace,
)
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.simulation import simulate
from scoring_service.errors import ConfigError

_MIN_REQUESTS = 20


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
    """The trace is cut into; every other one is for the fit."""
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
    clock: ClockKind = "wall"
    """"cpu" counts this process's CPU seconds and skips idle time: for engines on a CPU that is
    shared with others, whose load would be counted as the engine's."""
    rerun: bool = False
    """Serve the compared pieces twice, and say how far the engine is from itself: no simulator can
    be expected to come nearer than that."""
    figures: Path | None = None
    """Folder for a figure per metric, simulated against measured: e2e.svg, tpot.svg, ttft.svg."""
    seed: int = 0
    """Of the synthetic trace."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        if self.num_requests < _MIN_REQUESTS:
            raise ConfigError(f"num_requests is {self.num_requests}; use {_MIN_REQUESTS} or more")
        if not 2 <= self.pieces <= self.num_requests // 5:
            raise ConfigError(f"pieces is {self.pieces}; use 2 to {self.num_requests // 5}")
        if not self.rate_per_s > 0:
            raise ConfigError(f"rate_per_s is {self.rate_per_s}; use a rate above 0")


@dataclass(frozen=True, kw_only=True)
class Validation:
    """How far the simulator is from the engine: mean |simulated - measured| / measured."""

    policy: str
    num_requests: int
    """That were compared; about as many others served for the fit."""
    e2e_mape: float
    tpot_mape: float
    ttft_mape: float
    step_mape: float
    """Of the fitted step times, on the steps they were fitted to."""
    num_steps_fitted: int
    decisions_replayed: int
    """Admissions of the compared pieces; 0 under vLLM's own scheduler, which records none."""
    decisions_equal_fraction: float
    """Of these, how many were of the request that the policy, asked again, ranks first."""
    mean_e2e_s_measured: float
    mean_e2e_s_simulated: float
    rerun_e2e_mape: float | None
    """Of a second run of the engine, compared with the first; None where there was none."""
    rerun_tpot_mape: float | None
    rerun_ttft_mape: float | None


def validate(config: ValidateConfig) -> None:
    """Serve a trace with vLLM and simulate it; print how far apart the latencies are.

    python -m scheduler_adapters validate --policy pars --clock cpu --json
    """
    requests = _requests(config)
    recorded, reruns, fit, instance = _record_and_fit(requests, config)
    measured = [recording.timeline for recording in recorded]
    simulated = [simulate(run.requests, _policy(config), instance) for run in measured]
    result = _compare(config, recorded, simulated, reruns, fit)
    if config.figures is not None:
        _draw(measured, simulated, config.figures)
    if config.json:
        print(json.dumps(asdict(result)))
        return
    for name, value in asdict(result).items():
        print(f"{name:24} {format(value, '.4g') if isinstance(value, float) else value}")


def _record_and_fit(
    requests: Requests, config: ValidateConfig
) -> tuple[list[Recording], list[Timeline], StepFit, Instance]:
    """The compared pieces, a second run of them where one is wanted, and what the others teach."""
    pieces = [_from_zero(piece) for piece in _cut(requests, config.pieces)]
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
            recorded: list[Recording] = []
            reruns: list[Timeline] = []
            steps: list[StepRecord] = []
            for number, piece in enumerate(pieces):
                seed = config.seed + 2 * number
                recording = record(engine, piece, clock=config.clock, seed=seed)
                if number % 2 == 0:
                    steps += recording.steps
                    continue
                recorded.append(recording)
                if config.rerun:
                    again = record(engine, piece, clock=config.clock, seed=seed + 1)
                    reruns.append(again.timeline)
            fit = fit_steps(steps)
            return recorded, reruns, fit, _instance_like(engine, fit)


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
    return make_policy({SETTINGS: {"policy": config.policy, **config.settings}})


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
    recorded: Sequence[Recording],
    simulated: Sequence[Timeline],
    reruns: Sequence[Timeline],
    fit: StepFit,
) -> Validation:
    again = _latencies(reruns) if reruns else None
    real, ours = _latencies([recording.timeline for recording in recorded]), _latencies(simulated)
    replayed = [replay(_policy(config), recording.decisions) for recording in recorded]
    num_admissions = sum(agreement.num_admissions for agreement in replayed)
    num_equal = sum(agreement.num_equal for agreement in replayed)
    return Validation(
        policy=config.policy,
        num_requests=len(real["e2e"]),
        e2e_mape=_mape(ours["e2e"], real["e2e"]),
        tpot_mape=_mape(ours["tpot"], real["tpot"]),
        ttft_mape=_mape(ours["ttft"], real["ttft"]),
        step_mape=fit.mape_fraction,
        num_steps_fitted=fit.num_steps,
        decisions_replayed=num_admissions,
        decisions_equal_fraction=num_equal / max(1, num_admissions),
        mean_e2e_s_measured=float(real["e2e"].mean()),
        mean_e2e_s_simulated=float(ours["e2e"].mean()),
        rerun_e2e_mape=None if again is None else _mape(again["e2e"], real["e2e"]),
        rerun_tpot_mape=None if again is None else _mape(again["tpot"], real["tpot"]),
        rerun_ttft_mape=None if again is None else _mape(again["ttft"], real["ttft"]),
    )


def _latencies(timelines: Sequence[Timeline]) -> dict[str, Floats]:
    """Per request, seconds, over all pieces."""
    columns = {
        "e2e": [run.finished_s - run.requests.arrival_s for run in timelines],
        "ttft": [run.first_token_s - run.requests.arrival_s for run in timelines],
        "tpot": [tpot_s(run) for run in timelines],
    }
    return {name: np.concatenate(values) for name, values in columns.items()}


def _mape(simulated: Floats, measured: Floats) -> float:
    """Mean absolute percentage error, as a fraction, over the requests that have the metric."""
    have = ~np.isnan(measured)
    return float(np.mean(np.abs(simulated[have] - measured[have]) / measured[have]))


def _draw(measured: Sequence[Timeline], simulated: Sequence[Timeline], folder: Path) -> None:
    from scheduler_adapters.experiments.report import save_figure, scatter_figure

    folder.mkdir(parents=True, exist_ok=True)
    real, ours = _latencies(measured), _latencies(simulated)
    for name in real:
        figure = scatter_figure(
            real[name],
            ours[name],
            xlabel=f"{name.upper()} measured in vLLM, s",
            ylabel=f"{name.upper()} simulated, s",
        )
        save_figure(figure, folder / f"{name}.svg")


def main(arguments: Sequence[str]) -> int:
    """Entry point of `python -m scheduler_adapters validate`."""
    return run_command("validate", ValidateConfig, validate, arguments)
