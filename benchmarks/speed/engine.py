"""The cost of our scheduler inside vLLM: time per step beside the stock one, and tokens per second.

Both schedulers are stepped in turn in one process, without a model. Figures are medians.

The time added to a step is the time around vLLM's own part of it. `added_us_empty` is the floor: a
scheduler that overrides the same methods and does nothing. It is not subtracted. Our code that
vLLM calls within its part (queue, freed requests) is in `step_us_ours` only.
"""

import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import field
from math import nan
from typing import Annotated, Any

import numpy as np

from lengthwise.settings import Count, Natural, NonNegative, Range, settings
from scheduler_adapters.engines.engine_clock import EngineClock
from scheduler_adapters.engines.vllm_v1.in_process import (
    OfflineConfig,
    VllmDriver,
    open_engine,
    scheduler_of,
)
from scheduler_adapters.planner.request_annotations import SCORE, TBT_S
from scheduler_adapters.workload.requests import Floats, Requests, make_requests

_THINK_END = 2
_WARM_UP_STEPS = 250
"""Steps until all seats are taken, and requests finish at the rate of arrivals."""
_STEP = ("schedule", "update")
_REPEATS = 5
"""Parts of the measured steps; their medians show the spread."""
# Not the CPU clock of the thread: reading that costs more than some of what is measured here.
_now_ns = time.perf_counter_ns


@settings
class StepBenchConfig:
    """The load on the scheduler, and the length of the measurement."""

    policy: str = "pars"
    """Name or import path of the policy to measure."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the policy."""
    running: Count = 256
    """Requests that run at once."""
    waiting: Natural = 2000
    """Requests in the queue throughout: as many arrive as finish."""
    steps: Annotated[int, Range(least=_REPEATS)] = 1000
    """Steps measured per scheduler, after a warm-up."""
    prefix_caching: bool = False
    """Prompts of 128 tokens with a common, cached first half; none: prompts of 16 tokens."""
    throughput_rounds: Natural = 8
    """Bursts under each scheduler for tokens/s, about 3 s each; 0 leaves throughput out."""
    late_scores_s: NonNegative = 0.0
    """Seconds within which equal scores arrive for the waiting requests of a burst; 0: no score."""
    shape: str = "tiny"
    """Shape of the random model, as in `validate`."""
    kv_cache_mib: int = 256
    """Memory for KV blocks."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM's engine, as in `validate`."""
    json: bool = False
    """Print one JSON object."""

    @property
    def prompt(self) -> tuple[int, int]:
        """Tokens of a prompt, and of its part that all prompts share, in whole blocks of 32."""
        return (128, 64) if self.prefix_caching else (16, 0)


def bench(config: StepBenchConfig) -> None:
    """Compare our scheduler with vLLM's own: microseconds per step, tokens per second.

    python -m benchmarks engine-step --policy slai --json

    Seconds are CPU seconds where the model computes on a CPU, else those of the wall clock.
    """
    names = ("policy", "running", "waiting", "prefix_caching")
    result = {name: getattr(config, name) for name in names}
    offline = OfflineConfig(
        scheduler=config.policy,
        settings={**config.settings, "think_end": [_THINK_END]},
        max_num_seqs=config.running,
        max_num_batched_tokens=max(2048, config.running),
        kv_cache_mib=config.kv_cache_mib,
        shape=config.shape,
        engine=config.engine,
    )
    caching = {"enable_prefix_caching": config.prefix_caching}
    with open_engine(offline, max_model_len=2048, **caching) as engine:
        result |= measure_steps(engine, config)
        if config.throughput_rounds:
            result |= measure_throughput(engine, config)
    if config.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:24} {value if isinstance(value, str | int) else format(value, '.4g')}")


def measure_steps(engine: Any, config: StepBenchConfig) -> dict[str, float]:
    """Median microseconds of the parts of a step, stock and ours."""
    hasher = engine.engine_core.engine_core.request_block_hasher
    stock, ours = (_Side(made, config, hasher) for made in _schedulers_like(scheduler_of(engine)))
    for _ in range(config.steps):
        stock.step()
        ours.step()
    added_us, empty_us = ours.added_us(), stock.added_us()
    size = len(added_us) // _REPEATS
    repeats = np.median(added_us[: size * _REPEATS].reshape(_REPEATS, size), axis=1)
    return {
        "step_us_stock": sum(stock.median_us(stage) for stage in _STEP),
        "step_us_ours": sum(ours.median_us(stage) for stage in _STEP),
        "added_us_per_step": float(np.median(added_us)),
        "added_us_per_step_low": float(repeats.min()),
        "added_us_per_step_high": float(repeats.max()),
        "added_us_empty": float(np.median(empty_us)),
        "arrival_us_stock": stock.median_us("arrival"),
        "arrival_us_ours": ours.median_us("arrival"),
    }


class _Side:
    """One scheduler under load, without a model: each scheduled request gets some token."""

    def __init__(self, scheduler: Any, config: StepBenchConfig, hasher: Any) -> None:
        self.scheduler = scheduler
        self.hasher = hasher
        self.prompt_tokens, self.shared_tokens = config.prompt
        self.dice = random.Random(0)
        self.number = 0
        self.in_system = config.running + config.waiting
        self.spent_ns: dict[str, list[int]] = defaultdict(list)
        """Part of a step, or arrival -> nanoseconds of each occurrence."""
        self.added_ns: dict[str, list[int]] = defaultdict(list)
        """Part of a step -> nanoseconds outside the engine's own code, of each occurrence."""
        for _ in range(_WARM_UP_STEPS):
            self.step()
        self.spent_ns.clear()
        self.added_ns.clear()

    def median_us(self, what: str) -> float:
        return statistics.median(self.spent_ns[what]) / 1e3

    def added_us(self) -> Floats:
        """Microseconds outside the engine's own code, of each step."""
        us: Floats = np.array([self.added_ns[stage] for stage in _STEP]).sum(axis=0) / 1e3
        return us

    def step(self) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        for _ in range(self.in_system - len(self.scheduler.requests)):
            request = self._request()
            began_ns = _now_ns()
            self.scheduler.add_request(request)
            self.spent_ns["arrival"].append(_now_ns() - began_ns)
        scheduled = self._timed("schedule", self.scheduler.schedule)
        requests = self.scheduler.requests
        names = list(scheduled.num_scheduled_tokens)
        tokens = [[] if requests[name].is_prefill_chunk else [7] for name in names]
        output = ModelRunnerOutput(names, {n: i for i, n in enumerate(names)}, tokens)
        self._timed("update", self.scheduler.update_from_output, scheduled, output)

    def _timed(self, stage: str, call: Callable[..., Any], *arguments: Any) -> Any:
        # Nothing but the call stands between the two readings: after a step of the engine, whose
        # data fill the caches, a few lines of Python cost more than most of what is measured here.
        began_ns = _now_ns()
        result = call(*arguments)
        ended_ns = _now_ns()
        engine_ns = self.scheduler.ended_ns - self.scheduler.began_ns
        self.spent_ns[stage].append(ended_ns - began_ns)
        self.added_ns[stage].append(ended_ns - began_ns - engine_ns)
        return result

    def _request(self) -> Any:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        size = self.dice.randint(50, 450)  # with 256 running, about one finishes per step
        params = SamplingParams(
            max_tokens=size,
            ignore_eos=True,
            extra_args={SCORE: size + self.dice.random(), TBT_S: self.dice.choice([0.1, 0.5])},
        )
        self.number += 1
        prompt = [5] * self.prompt_tokens
        prompt[self.shared_tokens] = self.number  # from its block on nothing is shared
        return Request(
            str(self.number),
            prompt,
            params,
            None,
            arrival_time=time.time(),
            block_hasher=self.hasher,
        )


def _schedulers_like(scheduler: Any) -> tuple[Any, Any]:
    """Return vLLM's own scheduler and ours, configured alike, with vLLM's part of each timed."""
    # The difference of two such times within one step is steadier than that of two schedulers.
    from scheduler_adapters.engines.vllm_v1.rank_scheduler import RankMixin

    stock: Any = stock_class(scheduler.vllm_config)

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            self.began_ns = _now_ns()
            result = method(self, *arguments, **named)
            self.ended_ns = _now_ns()
            return result

        return call

    class Timed(stock):  # type: ignore[misc]
        began_ns = ended_ns = 0
        schedule = timed(stock.schedule)
        update_from_output = timed(stock.update_from_output)

    class Empty(Timed):
        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            return super().schedule(*args, **kwargs)

        def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
            return super().update_from_output(*args, **kwargs)

    class Ours(RankMixin, Timed):
        pass

    made_with = settings_of(scheduler)
    return Empty(**made_with), Ours(**made_with)


def settings_of(scheduler: Any) -> dict[str, Any]:
    """Return the arguments that make a scheduler configured as this one."""
    names = (
        "vllm_config", "kv_cache_config", "structured_output_manager", "block_size",
        "hash_block_size", "log_stats",
    )  # fmt: skip
    return {name: getattr(scheduler, name) for name in names}


def stock_class(vllm_config: Any) -> Any:
    """Return the class of vLLM's own scheduler under a configuration."""
    from scheduler_adapters.engines.vllm_v1.versions import AsyncScheduler, Scheduler

    is_async = vllm_config.scheduler_config.async_scheduling
    return AsyncScheduler if is_async else Scheduler


def measure_throughput(engine: Any, config: StepBenchConfig) -> dict[str, Any]:
    """Return the tokens per second of a whole engine on one burst, under both schedulers in turn.

    Equal numbers of steps mean that ours made the batches of vLLM's own.
    """
    from scheduler_adapters.engines.vllm_v1.rank_scheduler import scheduler as make_ours

    dice = random.Random(0)
    # Without scores or with equal ones, so that PARS makes the batches of FCFS: another order
    # changes how full the last batches are, and that is not what is measured here.
    sizes = [dice.randint(10, 90) for _ in range(2 * config.running)]
    burst = make_requests(
        prompt_tokens=[config.prompt[0]] * len(sizes),
        output_tokens=sizes,
        arrival_s=[0.0] * len(sizes),
        tbt_s=[0.5] * len(sizes),
        scores=1.0 if config.late_scores_s else nan,
        score_s=np.linspace(0.0, config.late_scores_s, len(sizes)),
    )
    made_with = settings_of(scheduler_of(engine))
    stock, ours = stock_class(made_with["vllm_config"])(**made_with), make_ours(**made_with)
    rates: dict[Any, list[float]] = {stock: [], ours: []}
    kind, clock = VllmDriver(engine).clock(None)
    for number in range(1 + config.throughput_rounds):
        for scheduler in (stock, ours) if number % 2 else (ours, stock):
            engine.engine_core.engine_core.scheduler = scheduler
            driver = VllmDriver(engine, shared_tokens=config.prompt[1])
            rates[scheduler].append(_tokens_per_s(driver, burst, clock))
    served = len(rates[ours])
    for first in rates.values():
        del first[0]  # it loads code and fills memory
    ratios = [mine / theirs for mine, theirs in zip(rates[ours], rates[stock], strict=True)]
    return {
        "clock": kind,
        "tokens_per_s_stock": statistics.median(rates[stock]),
        "tokens_per_s_ours": statistics.median(rates[ours]),
        "steps_per_burst_stock": stock.current_step / served,
        "steps_per_burst_ours": ours.current_step / served,
        "throughput_ratio": statistics.median(ratios),
        "throughput_ratio_low": min(ratios),
        "throughput_ratio_high": max(ratios),
    }


def _tokens_per_s(driver: VllmDriver, burst: Requests, clock: EngineClock) -> float:
    driver.serve(burst, clock=clock, seed=0)
    spent_s = clock()
    core = driver.engine.engine_core.engine_core
    # By then the model has forgotten the last requests, and no step is in flight.
    while core.scheduler.has_finished_requests() or core.batch_queue:
        driver.engine.step()
    return float(burst.output_tokens.sum()) / spent_s
