"""`bench`: requests that the simulator serves per CPU second, and the memory of large runs."""

import os
import resource
import tempfile
import time
import timeit
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lengthwise.settings import Count, settings
from lengthwise.strict_json import to_json
from scheduler_adapters.placements.baselines import RoundRobinPlacement
from scheduler_adapters.placements.pascal import PascalPlacement
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars_paper
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.cluster import simulate_cluster
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency, LatencyModel
from scheduler_adapters.simulator.latency.time_tables import TableLatency
from scheduler_adapters.simulator.links import Fabric, HostLink
from scheduler_adapters.simulator.simulate import LoopName, simulate_replicas
from scheduler_adapters.timeline.timeline import write_timeline
from scheduler_adapters.workload.arrivals import LENGTH_STREAM, arrivals_s
from scheduler_adapters.workload.mixes import draw_lengths
from scheduler_adapters.workload.requests import Requests, make_requests
from scheduler_adapters.workload.traces import read_trace

T = TypeVar("T")
TABLES_FILE = "tables.npz"
_RATE_PER_S = 6.45
"""Per instance: a little more than the golden instance can serve."""
_REASONING_PER_S = 1.9
"""Per instance, near high load: under FCFS requests wait for KV blocks 7% of the time, and 20% is
what `reproduce pascal` takes as high."""


@settings
class SimulatorBenchConfig:
    """The requests to measure with, and how often."""

    repeats: Count = 5
    """Runs per figure; the fastest counts."""
    million: bool = True
    """Add the run of 1,000,000 requests on 8 instances, outputs written."""
    clusters: bool = True
    """Add the run of 100,000 requests that reason, on 8 instances under PASCAL."""
    large: bool = False
    """Add the run of 1,000,000 of them on 64 instances: a quarter of an hour."""
    json: bool = False
    """Print one JSON object instead of a table."""


def run(config: SimulatorBenchConfig) -> None:
    """Measure requests per CPU second of this process, and the memory of a large run.

    Example:
      python -m benchmarks simulator --json

    One instance x 1,000 requests and 8 x 10,000, saturated, without start-up and compilation: those
    of $LENGTHWISE_DATA/vidur-golden, else synthetic ones.
    python_path is the same without compiled loops, cluster_r8 sarathi_r8 as a cluster.
    """
    tables, small, large = _load(Path(os.environ.get("LENGTHWISE_DATA", "."), "vidur-golden"))
    latency = tables or _SYNTHETIC
    instances = [golden_instance(latency)] * 8
    cluster = partial(simulate_cluster, large, RoundRobinPlacement(), Sarathi, instances)
    figures: dict[str, object] = {
        "requests": "golden" if tables else "synthetic",
        **_speeds(latency, small, large, "compiled", config.repeats),
        "cluster_r8": per_cpu_s(cluster, len(large), config.repeats),
        "python_path": _speeds(latency, small, large, "python", config.repeats),
    }
    if config.million:
        figures["million"] = alone(run_million)
    if config.clusters:
        figures["pascal_8x100k"] = alone(run_pascal, 8, 100_000)
    if config.large:
        figures["cluster_64x1m"] = alone(run_pascal, 64, 1_000_000)
    print(to_json(figures) if config.json else format_figures(figures))


_SYNTHETIC = AffineLatency(base_s=0.0096, per_token_s=5.5e-5, per_context_token_s=5e-8)


def golden_instance(latency: LatencyModel) -> Instance:
    """Return the instance of the golden runs."""
    limits: dict[str, Any] = {"kv_blocks": 30208, "max_num_seqs": 128, "max_tokens": 512}
    return Instance(latency=latency, decode_headroom_blocks=1, **limits)


def alone(run: Callable[..., T], *arguments: Any) -> T:
    """Return the result of a call in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(run, *arguments).result()


def _load(folder: Path) -> tuple[TableLatency | None, Requests, Requests]:
    if not folder.is_dir():
        return None, chat_requests(1000, _RATE_PER_S), chat_requests(10_000, 8 * _RATE_PER_S)
    small = read_trace(folder / "sarathi_r1_n1000_q6.45.parquet")
    large = read_trace(folder / "sarathi_r8_n10000_q51.6.parquet")
    return TableLatency.load(folder / TABLES_FILE), small, large


def chat_requests(count: int, rate_per_s: float) -> Requests:
    """Poisson arrivals with lengths like a chat trace: means 1,150 prompt and 215 output tokens."""
    random = np.random.default_rng((0, LENGTH_STREAM))
    return make_requests(
        prompt_tokens=np.clip(random.lognormal(6.6, 0.95, count), 1, 3500).astype(np.int64),
        output_tokens=np.clip(random.lognormal(5.1, 0.72, count), 1, 590).astype(np.int64),
        arrival_s=arrivals_s(count, rate_per_s=rate_per_s, seed=0),
    )


def _speeds(
    latency: LatencyModel, small: Requests, large: Requests, loop: LoopName, repeats: int
) -> dict[str, float]:
    instance = golden_instance(latency)
    classes = replace(small, tbt_s=np.where(np.arange(len(small)) % 20 == 0, 0.1, 0.5))

    def speed(make_policy: Callable[[], Policy], requests: Requests, replicas: int = 1) -> float:
        run = partial(simulate_replicas, requests, make_policy, instance, replicas=replicas)
        return per_cpu_s(partial(run, loop=loop), len(requests), repeats)

    return {
        "sarathi_r1": speed(Sarathi, small),
        "sarathi_r8": speed(Sarathi, large, replicas=8),
        "pars": speed(pars_paper, small.with_scores(small.output_tokens)),
        "slai_dynamic": speed(SLAI, classes),
        "round_robin": speed(RoundRobin, small),
        "pascal": speed(Pascal, replace(small, reasoning_tokens=small.output_tokens // 2)),
    }


def per_cpu_s(run: Callable[[], object], count: int, repeats: int) -> float:
    """Return the requests per CPU second of the fastest run, after one that compiles."""
    # timeit switches the garbage collector off, whose time counts here.
    taken_s = timeit.repeat(run, "gc.enable()", time.process_time, repeats + 1, number=1)
    return round(count / min(taken_s[1:]))


def run_million(count: int = 1_000_000, replicas: int = 8) -> dict[str, float]:
    """Simulate and write `count` requests; CPU seconds and peak memory of this whole process."""
    requests = chat_requests(count, 0.9 * replicas * _RATE_PER_S)
    instance = replace(golden_instance(_SYNTHETIC), decode_headroom_blocks=0)
    timeline = simulate_replicas(requests, Sarathi, instance, replicas=replicas, loop="compiled")
    with tempfile.TemporaryDirectory(prefix="lengthwise-") as folder:
        write_timeline(timeline, Path(folder) / "timeline.parquet", token_times=False)
    return usage()


def run_pascal(num_instances: int, count: int) -> dict[str, float]:
    """Simulate `count` requests that reason: CPU seconds and peak memory of this whole process."""
    model = "deepseek-r1-distill-qwen-32b"
    arrival_s = arrivals_s(count, rate_per_s=_REASONING_PER_S * num_instances, seed=0)
    simulate_cluster(
        replace(draw_lengths("alpaca-eval", count, seed=0), arrival_s=arrival_s),
        PascalPlacement(),
        lambda: Pascal(offload=True),
        [Instance.preset(f"{model}@h100-96g", host=HostLink.of_model(model))] * num_instances,
        fabric=Fabric.of_model(model),
    )
    return usage()


def usage() -> dict[str, float]:
    """Return CPU seconds and peak memory of this process so far."""
    rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"cpu_s": round(time.process_time(), 2), "rss_gib": round(rss_kib / 2**20, 3)}


def format_figures(figures: dict[str, object]) -> str:
    """The figures as lines for a terminal."""
    lines = []
    for key, value in figures.items():
        for name, number in (value if isinstance(value, dict) else {"": value}).items():
            label = f"{key}.{name}" if name else key
            lines.append(f"{label:32} {number:>12{'' if isinstance(number, str) else ','}}")
    return "\n".join(lines)
