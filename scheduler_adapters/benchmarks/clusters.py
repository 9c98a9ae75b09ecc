"""Large simulated clusters: CPU time and memory under PASCAL's placement and policy."""

import resource
import time
from dataclasses import replace
from typing import Final

from lengthwise.progress import Progress
from scheduler_adapters.placements.pascal import PascalPlacement
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.simulator.cluster import simulate_cluster
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.links import Fabric, HostLink
from scheduler_adapters.simulator.observers import ProgressLine
from scheduler_adapters.workload.arrivals import poisson_arrivals_s
from scheduler_adapters.workload.mixes import draw_lengths

_MODEL: Final = "deepseek-r1-distill-qwen-32b"
_HIGH_PER_S: Final = 1.9
"""Requests per second and instance, near high load: under FCFS requests wait for KV blocks 7% of
the time, and 20% is what `reproduce pascal` takes as high."""


def run_pascal(num_instances: int, count: int) -> dict[str, float]:
    """Simulate `count` requests that reason: CPU seconds and peak memory of this whole process."""
    requests = draw_lengths("alpaca-eval", count, seed=0)
    rate_per_s = _HIGH_PER_S * num_instances
    arrival_s = poisson_arrivals_s(count, rate_per_s=rate_per_s, seed=0)
    instance = Instance.preset(f"{_MODEL}@h100-96g", host=HostLink.of_model(_MODEL))
    with Progress(1) as progress:
        progress.begin(f"{num_instances} instances")
        lines = [ProgressLine(progress, count)] if progress.is_terminal else []
        simulate_cluster(
            replace(requests, arrival_s=arrival_s),
            PascalPlacement(),
            lambda: Pascal(offload=True),
            [instance] * num_instances,
            fabric=Fabric.of_model(_MODEL),
            observers=lambda number: lines,
        )
    return usage()


def usage() -> dict[str, float]:
    """Return CPU seconds and peak memory of this process so far."""
    rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"cpu_s": round(time.process_time(), 2), "rss_gib": round(rss_kib / 2**20, 3)}
