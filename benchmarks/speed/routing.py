"""The cost of one decision of a router: the choice of a replica with its booking, and its end."""

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from scheduler_adapters.placement import load_placement
from scheduler_adapters.routers.legs import Leg
from scheduler_adapters.routers.replica_load import ReplicaLoad
from scheduler_adapters.routers.routing import Routing


@dataclass(frozen=True, kw_only=True)
class RoutingBenchConfig:
    """Placement and length of the measurement."""

    placement: str = "pascal"
    """Name or import path of the placement."""
    decisions: int = 5000
    """Decisions measured for each number."""


def run(config: RoutingBenchConfig) -> None:
    """Measure the median time of a decision in microseconds, by the number of replicas.

    Example:
      python -m benchmarks routing
    """
    for number in (3, 8, 32, 128):
        print(f"{number:>5} replicas {decision_us(config, number):8.1f} us")


def decision_us(config: RoutingBenchConfig, num_replicas: int) -> float:
    """Return the median time of a decision between replicas with fresh reports."""
    routing = Routing(load_placement(config.placement), max_stale_s=1e9)
    names = [f"replica-{number}" for number in range(num_replicas)]
    routing.update(dict.fromkeys(names, ReplicaLoad(total_blocks=10_000).report()))
    sizes: dict[str, Any] = {"prompt_tokens": 200, "max_tokens": 100}
    prompt, taken_ns = tuple(range(200)), []
    for number in range(config.decisions):
        call = str(number)
        leg = Leg(request_id=call, token_ids=prompt, is_thinking=True, arrival_s=0.0, **sizes)
        start_ns = time.perf_counter_ns()
        routing.choose(call, leg, names)
        routing.views.cancel(str(number - 2 * num_replicas))
        taken_ns.append(time.perf_counter_ns() - start_ns)
    return median(taken_ns) / 1000
