"""Run every measure and set the targets beside the results."""

import os
import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

from lengthwise.errors import BundleError
from lengthwise.strict_json import to_json
from scoring_service.bench import measures, peers
from scoring_service.bench.measures import BenchConfig

IDLE_LOAD: Final = 0.3
"""Load average per core up to which wall-clock figures mean something."""
TARGETS: Final = {
    "cpu_ratio_unary": "<= 1.15",
    "cpu_ratio_batch32": "<= 1.03",
    "vs_peer_cpu": ">= 1.3 (MLServer with batches of 32, 2 ms), >= 2.5 (naive)",
    "added_latency_ms": "p50 <= 0.5, p99 <= 1.5",
    "batching_gain": "mixed >= 1.0, short >= 1.35",
}
_CPU_RATIOS: Final = {
    "cpu_ratio_unary": ("ours/all", "bare/all"),
    "cpu_ratio_unary_one_client": ("ours/1", "bare/1"),
    "vs_peer_cpu": ("other/all", "ours/all"),
}


def bench(config: BenchConfig) -> None:
    """Measure the service beside the bare model and any other service.

    Starts everything it needs, lets the peers take turns and compares CPU times; about 2 minutes.
    Throughput and overload are measured by `loadtest`.

    Example:
      python -m scoring_service bench --bundle mlruns/demo/bundle --json
    """
    try:
        subject = measures.Subject.load(config)
    except BundleError as error:
        raise BundleError(f"{error}; or say which with --bundle") from error
    result = {
        "bundle": str(subject.folder),
        "revision": subject.model.revision,
        "precision": subject.model.precision,
        "cores": subject.cores,
        "load_average": os.getloadavg()[0],
        **_side_by_side(subject),
        "batching_gain": measures.batching_gain(subject),
        "load_average_end": os.getloadavg()[0],
    }
    print(to_json(result) if config.json else format_table(result))


def _side_by_side(subject: measures.Subject) -> dict[str, Any]:
    with ExitStack() as stack:
        us = stack.enter_context(peers.ours(subject.folder, subject.config.precision))
        running = [us]
        if subject.config.peer is not None:
            running.append(stack.enter_context(peers.other(subject.config.peer)))
        cpu_ms = measures.cpu_ms_in_turns(subject, running)
        result: dict[str, Any] = {
            key: measures.median_ratio(cpu_ms.get(name, ()), cpu_ms.get(other, ()))
            for key, (name, other) in _CPU_RATIOS.items()
        }
        return result | {
            "cpu_ms": {name: statistics.median(values) for name, values in cpu_ms.items()},
            "cpu_ratio_batch32": measures.batch_cpu_ratio(subject, us),
            "added_latency_ms": measures.added_latency_ms(subject, us, 300),
        }


def format_table(result: Mapping[str, Any]) -> str:
    """The figures beside their targets."""
    lines = [f"{result['bundle']} {result['precision']} on {result['cores']} cores"]
    if result["load_average"] > IDLE_LOAD * result["cores"]:
        lines.append(
            f"  The machine was busy (load {result['load_average']:.1f}): trust the CPU ratios; "
            "latencies depend on the other work."
        )
    lines += [f"  {key:20} {_shown(result[key]):58} {text}" for key, text in TARGETS.items()]
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(part)}" for key, part in value.items())
    return "not measured" if value is None else f"{value:.3g}"
