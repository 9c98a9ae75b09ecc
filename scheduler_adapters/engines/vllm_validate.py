"""Does the simulator tell the truth? A trace on the real engine, and the same trace simulated.

The trace is cut into pieces. In every other piece each step of vLLM is recorded with its size and
duration, and an affine latency model is fitted to these. The pieces between, which the fit has not
seen, are served by vLLM and simulated under the same policy, and the latencies are compared request
by request. Pieces that alternate see the same machine, even where its speed drifts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scheduler_adapters.command_line import run_command
from scheduler_adapters.engines.settings import SETTINGS, make_policy
from scheduler_adapters.engines.vllm_offline import (
    STOCK,
    OfflineConfig,
    add_request,
    hints_of,
    longest_context,
    open_engine,
    random_prompts,
    scheduler_of,
    warm_up,
)
from scheduler_adapters.experiments.metrics import tpot_s
from scheduler_adapters.experiments.timeline import Timeline, timeline_from_token_times
from scheduler_adapters.experiments.workload import (
    Floats,
    Requests,
    make_requests,
    poisson_arrivals_s,
    read_trace,
)
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.affine_fit import AffineFit, fit_affine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency import AffineLatency
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
    num_requests: int = 300
    """Of the synthetic trace, or the first ones of the file."""
    pieces: int = 6
    """The trace is cut into; every other one is for the fit."""
    rate_per_s: float = 15.0
    """Poisson arrivals of the synthetic trace."""
    max_num_seqs: int = 8
    """Requests that run at once."""
    model: Path | None = None
    """Folder of a model; left out, a tiny random one is made for the run."""
    kv_cache_mib: int = 64
    """Memory for KV blocks."""
    clock: Literal["wall", "cpu"] = "wall"
    """"cpu" counts this process's CPU seconds and skips idle time: for engines on a CPU that is
    shared with others, whose load would be counted as the engine's."""
    figure: Path | None = None
    """Write simulated against measured E2E here (.svg or .png)."""
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


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of the engine, as the latency models see it."""

    num_decodes: int
    decode_context: int
    prefill_tokens: int
    attention_pairs: float
    seconds: float


@dataclass(frozen=True)
class Recording:
    """What the engine did with some requests."""

    timeline: Timeline
    steps: Sequence[StepRecord]


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
    mean_e2e_s_measured: float
    mean_e2e_s_simulated: float


def validate(config: ValidateConfig) -> None:
    """Serve a trace with vLLM and simulate it; print how far apart the latencies are.

    python -m scheduler_adapters validate --policy pars --clock cpu --json
    """
    requests = _requests(config)
    offline = OfflineConfig(
        scheduler=config.policy,
        settings=config.settings,
        max_num_seqs=config.max_num_seqs,
        kv_cache_mib=config.kv_cache_mib,
        model=config.model,
    )
    pieces = [_from_zero(piece) for piece in _cut(requests, config.pieces)]
    with open_engine(offline, max_model_len=longest_context(requests)) as engine:
        warm_up(engine)
        recordings = [record(engine, piece, config) for piece in pieces]
        fit = _fit([step for recording in recordings[::2] for step in recording.steps])
        instance = _instance_like(engine, fit)
    measured = [recording.timeline for recording in recordings[1::2]]
    simulated = [simulate(run.requests, _policy(config), instance) for run in measured]
    result = _compare(config.policy, measured, simulated, fit)
    if config.figure is not None:
        _draw(measured, simulated, config.figure)
    if config.json:
        print(json.dumps(asdict(result)))
        return
    for name, value in asdict(result).items():
        print(f"{name:24} {value if isinstance(value, str | int) else format(value, '.4g')}")


class _Clock:
    """Seconds since the start, of the wall or of this process's CPU."""

    def __init__(self, kind: Literal["wall", "cpu"]) -> None:
        self._is_cpu = kind == "cpu"
        self._read = time.process_time if self._is_cpu else time.monotonic
        self._start_s = self._read()

    def __call__(self) -> float:
        return self._read() - self._start_s

    def wait_until(self, instant_s: float) -> None:
        """Sleep, or where only work counts, skip."""
        wait_s = max(0.0, instant_s - self())
        if self._is_cpu:
            self._start_s -= wait_s
        else:
            time.sleep(wait_s)


def record(engine: Any, requests: Requests, config: ValidateConfig) -> Recording:
    """Serve the requests as they arrive; the timeline, and every step."""
    prompts, clock = random_prompts(requests, config.seed), _Clock(config.clock)
    scheduler = scheduler_of(engine)
    if config.policy != STOCK:
        scheduler.lengthwise.clock = clock
    token_s: list[list[float]] = [[] for _ in range(len(requests))]
    steps: list[StepRecord] = []
    added, busy_since_s = 0, clock()
    with _watched(scheduler) as sizes:
        while added < len(requests) or engine.has_unfinished_requests():
            if not engine.has_unfinished_requests():
                clock.wait_until(requests.arrival_s[added])
                busy_since_s = clock()
            while added < len(requests) and requests.arrival_s[added] <= clock():
                add_request(
                    engine,
                    str(added),
                    prompts[added],
                    int(requests.output_tokens[added]),
                    arrival_time=time.time() - (clock() - requests.arrival_s[added]),
                    extra_args=hints_of(requests, added),
                )
                added += 1
            outputs = engine.step()
            now_s = clock()
            steps += [replace(size, seconds=now_s - busy_since_s) for size in sizes]
            sizes.clear()
            busy_since_s = now_s
            for output in outputs:
                new = len(output.outputs[0].token_ids)
                token_s[int(output.request_id)] += [now_s] * new
    return Recording(timeline_from_token_times(requests, token_s), steps)


@contextmanager
def _watched(scheduler: Any) -> Iterator[list[StepRecord]]:
    """Collects the size of each step that the scheduler makes; empty steps are left out."""
    sizes: list[StepRecord] = []
    schedule = scheduler.schedule

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        if output.num_scheduled_tokens:
            sizes.append(_size(scheduler, output.num_scheduled_tokens))
        return output

    scheduler.schedule = watched
    try:
        yield sizes
    finally:
        del scheduler.schedule


def _size(scheduler: Any, scheduled: Mapping[str, int]) -> StepRecord:
    num_decodes = decode_context = prefill_tokens = 0
    pairs = 0.0
    for request_id, tokens in scheduled.items():
        request = scheduler.requests[request_id]
        before = request.num_computed_tokens - tokens  # the engine has counted the step already
        if before >= request.num_prompt_tokens and tokens == 1:
            num_decodes += 1
            decode_context += before + 1
        else:
            prefill_tokens += tokens
            pairs += tokens * (before + tokens / 2)
    return StepRecord(num_decodes, decode_context, prefill_tokens, pairs, seconds=0.0)


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


def _fit(steps: Sequence[StepRecord]) -> AffineFit:
    """The affine model of these steps, scaled so that it takes as long for all of them.

    A fit to relative errors leans to the fast steps; latencies are sums, which the slow ones carry.
    """
    columns = {name: [getattr(step, name) for step in steps] for name in StepRecord.__slots__}
    fit = fit_affine(**columns)
    latency = fit.latency
    predicted_s = sum(
        latency.base_s
        + latency.per_token_s * (step.num_decodes + step.prefill_tokens)
        + latency.per_context_token_s * step.decode_context
        + latency.per_attention_pair_s * step.attention_pairs
        for step in steps
    )
    scale = sum(step.seconds for step in steps) / predicted_s
    scaled = {f.name: getattr(latency, f.name) * scale for f in fields(AffineLatency)}
    return replace(fit, latency=AffineLatency(**scaled))


def _from_zero(requests: Requests) -> Requests:
    return replace(requests, arrival_s=requests.arrival_s - requests.arrival_s[0])


def _policy(config: ValidateConfig) -> Policy:
    if config.policy == STOCK:
        return FCFS()
    return make_policy({SETTINGS: {"policy": config.policy, **config.settings}})


def _instance_like(engine: Any, fit: AffineFit) -> Instance:
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
    policy: str, measured: Sequence[Timeline], simulated: Sequence[Timeline], fit: AffineFit
) -> Validation:
    real, ours = _latencies(measured), _latencies(simulated)
    return Validation(
        policy=policy,
        num_requests=len(real["e2e"]),
        e2e_mape=_mape(ours["e2e"], real["e2e"]),
        tpot_mape=_mape(ours["tpot"], real["tpot"]),
        ttft_mape=_mape(ours["ttft"], real["ttft"]),
        step_mape=fit.mape_fraction,
        num_steps_fitted=fit.num_steps,
        mean_e2e_s_measured=float(real["e2e"].mean()),
        mean_e2e_s_simulated=float(ours["e2e"].mean()),
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


def _draw(measured: Sequence[Timeline], simulated: Sequence[Timeline], path: Path) -> None:
    from scheduler_adapters.experiments.report import save_figure, scatter_figure

    figure = scatter_figure(
        _latencies(measured)["e2e"],
        _latencies(simulated)["e2e"],
        xlabel="E2E measured in vLLM, s",
        ylabel="E2E simulated, s",
    )
    save_figure(figure, path)


def main(arguments: Sequence[str]) -> int:
    """Entry point of `python -m scheduler_adapters validate`."""
    return run_command("validate", ValidateConfig, validate, arguments)
