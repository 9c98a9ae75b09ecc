"""`bench`: requests that the simulator serves per CPU second, and the memory of a large run."""

import os
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from scheduler_adapters.commands.check_golden import TABLES_FILE
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency, LatencyModel
from scheduler_adapters.simulator.latency.time_tables import TableLatency
from scheduler_adapters.simulator.simulate import LoopName, simulate_replicas
from scheduler_adapters.timeline.timeline import write_timeline
from scheduler_adapters.workload.arrivals import LENGTH_STREAM, poisson_arrivals_s
from scheduler_adapters.workload.requests import Requests, make_requests
from scheduler_adapters.workload.traces import read_trace
from scoring_service.errors import ConfigError, at_least
from scoring_service.strict_json import to_json

_RATE_PER_S = 6.45
"""Per instance: a little more than the golden instance can serve."""


@dataclass(frozen=True, kw_only=True)
class SimulatorBenchConfig:
    """The requests to measure with, and how often."""

    golden: Path | None = None
    """Folder of golden runs; none: $LENGTHWISE_DATA/vidur-golden, else requests of that size."""
    repeats: int = 5
    """Runs per figure; the fastest counts."""
    million: bool = True
    """Whether to run 1,000,000 requests on 8 instances, outputs written."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        at_least("repeats", self.repeats, 1)
        if self.golden is not None and not self.golden.is_dir():
            raise ConfigError(
                f"golden is {self.golden}, which is no folder; leave it out for synthetic requests"
            )


def run(config: SimulatorBenchConfig) -> None:
    """Measure requests per CPU second of this process, and the memory of a large run.

    Example:
      python -m scheduler_adapters bench --json

    One instance x 1,000 requests and 8 x 10,000, step times from tables, saturated; everything from
    requests to timelines counts, start-up and compilation do not. python_path is the same without
    the compiled loops, which do policies with ranks that never change, and SLAI.
    """
    latency, small, large = _load(config.golden)
    figures: dict[str, object] = {
        "requests": "synthetic" if latency is None else "golden",
        **_speeds(latency or _SYNTHETIC, small, large, "compiled", config.repeats),
        "python_path": _speeds(latency or _SYNTHETIC, small, large, "python", config.repeats),
    }
    if config.million:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            figures["million"] = alone.submit(run_million).result()
    print(to_json(figures) if config.json else format_figures(figures))


_SYNTHETIC = AffineLatency(base_s=0.0096, per_token_s=5.5e-5, per_context_token_s=5e-8)


def _load(folder: Path | None) -> tuple[TableLatency | None, Requests, Requests]:
    """Time tables and the requests of the two sizes."""
    if folder is None and os.environ.get("LENGTHWISE_DATA"):
        folder = Path(os.environ["LENGTHWISE_DATA"]) / "vidur-golden"
    if folder is None or not folder.is_dir():
        return None, chat_requests(1000, _RATE_PER_S), chat_requests(10_000, 8 * _RATE_PER_S)
    small = read_trace(folder / "sarathi_r1_n1000_q6.45.parquet")
    large = read_trace(folder / "sarathi_r8_n10000_q51.6.parquet")
    return TableLatency.load(folder / TABLES_FILE), small, large


def chat_requests(count: int, rate_per_s: float) -> Requests:
    """Poisson arrivals with lengths like a chat trace: means 1,150 prompt and 215 output tokens."""
    random = np.random.default_rng((0, LENGTH_STREAM))
    prompt_tokens = np.clip(random.lognormal(6.6, 0.95, count), 1, 3500).astype(np.int64)
    output_tokens = np.clip(random.lognormal(5.1, 0.72, count), 1, 590).astype(np.int64)
    return make_requests(
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        arrival_s=poisson_arrivals_s(count, rate_per_s=rate_per_s, seed=0),
    )


def _speeds(
    latency: LatencyModel, small: Requests, large: Requests, loop: LoopName, repeats: int
) -> dict[str, float]:
    """Requests per CPU second by policy."""
    instance = replace(_instance(latency), decode_headroom_blocks=1)
    scored = small.with_scores(small.output_tokens)
    is_paying = np.arange(len(small)) % 20 == 0
    classes = replace(small, tbt_s=np.where(is_paying, 0.1, 0.5))

    def speed(make_policy: Callable[[], Policy], requests: Requests, replicas: int = 1) -> float:
        taken_s = []
        for _ in range(repeats + 1):
            start_s = time.process_time()
            simulate_replicas(requests, make_policy, instance, replicas=replicas, loop=loop)
            taken_s.append(time.process_time() - start_s)
        return round(len(requests) / min(taken_s[1:]))  # the first one compiles

    return {
        "sarathi_r1": speed(Sarathi, small),
        "sarathi_r8": speed(Sarathi, large, replicas=8),
        "pars": speed(pars, scored),
        "slai_dynamic": speed(SLAI, classes),
        "round_robin": speed(RoundRobin, small),
    }


def _instance(latency: LatencyModel) -> Instance:
    return Instance(latency=latency, kv_blocks=30208, max_num_seqs=128, max_tokens=512)


def run_million(count: int = 1_000_000, replicas: int = 8) -> dict[str, float]:
    """Simulate and write `count` requests; CPU seconds and peak memory of this whole process."""
    requests = chat_requests(count, 0.9 * replicas * _RATE_PER_S)
    instance = _instance(_SYNTHETIC)
    timeline = simulate_replicas(requests, Sarathi, instance, replicas=replicas, loop="compiled")
    with tempfile.TemporaryDirectory(prefix="lengthwise-") as folder:
        write_timeline(timeline, Path(folder) / "timeline.parquet", token_times=False)
    rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"cpu_s": round(time.process_time(), 2), "rss_gib": round(rss_kib / 2**20, 3)}


def format_figures(figures: dict[str, object]) -> str:
    """The figures as lines for a terminal."""
    lines = []
    for key, value in figures.items():
        parts = value if isinstance(value, dict) else {"": value}
        for name, number in parts.items():
            label = f"{key}.{name}" if name else key
            lines.append(f"{label:32} {number:>12{'' if isinstance(number, str) else ','}}")
    return "\n".join(lines)
