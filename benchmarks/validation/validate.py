"""`validate`: errors of the simulator against vLLM on one trace, as a table.

`validation/engine_trial.py` defines the comparison.
"""

import json
from collections.abc import Mapping
from dataclasses import field, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import pandas as pd

from benchmarks.validation.engine_trial import METRICS, RepeatedError, TrialConfig, run_trial
from lengthwise.errors import ConfigError, require
from lengthwise.settings import Positive, Range, settings
from scheduler_adapters.engines.vllm_v1.additional_config import SETTINGS, configured_policy
from scheduler_adapters.engines.vllm_v1.in_process import (
    STOCK,
    OfflineConfig,
    longest_context,
    open_driver,
)
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policy import Policy
from scheduler_adapters.reporting.latency_tables import text_of
from scheduler_adapters.workload.arrivals import arrivals_s
from scheduler_adapters.workload.requests import Requests, make_requests
from scheduler_adapters.workload.traces import read_trace

_MIN_REQUESTS: Final = 20


@settings
class ValidateConfig(TrialConfig):
    """The trace, the engine and the clock."""

    policy: str = "pars"
    """Name or import path of the policy; "stock" is vLLM's own scheduler, simulated as FCFS."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the policy."""
    trace: Path | None = None
    """Requests (.jsonl, .csv, .parquet); left out, a synthetic trace is made."""
    num_requests: Annotated[int, Range(least=_MIN_REQUESTS)] = 200
    """Requests of the synthetic trace, or limit of requests from the start of the file."""
    rate_per_s: Positive = 5.0
    """Rate of the Poisson arrivals of the synthetic trace."""
    max_num_seqs: int = 32
    """Requests that run at once."""
    model: Path | None = None
    """Folder of a model; left out, a random one is made for the run."""
    shape: str = "small"
    """Shape of the random model: tiny, small, or for a GPU 7b. In a step of the tiny one the
    engine's Python takes most of the time."""
    kv_cache_mib: int = 256
    """Memory for KV blocks."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM's engine, e.g. {"enforce_eager": false} for CUDA graphs."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        most = self.num_requests // 5
        require("pieces", self.pieces, 2 <= self.pieces <= most, f"2 to {most}")


def validate(config: ValidateConfig) -> None:
    """Serve a trace with vLLM and simulate it; print how far apart the latencies are.

    python -m benchmarks validate --policy pars --json

    vLLM serves each piece of the trace --repeats times. Step times are fitted on one half of the
    pieces. The other half is simulated and compared per request. The table has the error against
    the mean of the repeats (mape), and the part of it due to the uncertain mean
    (noise_mape). It also has the error against single runs (single_run_mape), and that of one run
    of vLLM against the mean of its other runs (floor_mape).
    """
    make = partial(_policy, config)
    make()  # refuses a wrong name or setting before torch and vLLM are loaded
    requests = _requests(config)
    names = ("settings", "max_num_seqs", "kv_cache_mib", "model", "shape", "engine")
    offline = OfflineConfig(
        scheduler=config.policy, **{name: getattr(config, name) for name in names}
    )
    with open_driver(offline, max_model_len=longest_context(requests)) as driver:
        row = run_trial(driver, requests, config.policy, make, config)
    print(json.dumps(row) if config.json else _table(row))


def _requests(config: ValidateConfig) -> Requests:
    if config.trace is not None:
        requests = read_trace(config.trace, limit=config.num_requests)
        if (found := len(requests)) < _MIN_REQUESTS:
            raise ConfigError(f"{config.trace} has {found} requests; give {_MIN_REQUESTS} or more")
        return requests
    dice = np.random.default_rng(config.seed)
    count = config.num_requests
    output_tokens = np.clip(dice.lognormal(4.5, 0.7, count), 4, 600).astype(int)
    return make_requests(
        prompt_tokens=dice.integers(8, 400, count),
        output_tokens=output_tokens,
        arrival_s=arrivals_s(count, rate_per_s=config.rate_per_s, seed=config.seed),
        scores=output_tokens * dice.lognormal(0.0, 0.4, count),
    )


def _policy(config: ValidateConfig) -> Policy:
    if config.policy == STOCK:
        return FCFS()
    return configured_policy({SETTINGS: {"policy": config.policy, **config.settings}})


def _table(row: Mapping[str, Any]) -> str:
    errors = [
        {
            "metric": m.upper(),
            **{part.name: row[f"{m}_{part.name}"] for part in fields(RepeatedError)},
        }
        for m in METRICS
    ]
    return (
        f"{row['policy']}: {row['num_requests']} requests outside the fit, each served "
        f"{row['repeats']} times by vLLM and simulated once; seconds of the {row['clock']} clock\n"
        f"{text_of(pd.DataFrame(errors))}\n"
        f"steps: {row['num_steps_fitted']} of the other requests fitted, "
        f"{row['step_mape']:.1%} off in the mean"
    )
