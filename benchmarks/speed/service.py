"""Run every measure and set the targets beside the results."""

import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

from benchmarks.speed import service_measures as measures, service_peers as peers
from benchmarks.speed.service_measures import BenchConfig, Subject
from benchmarks.speed.service_peers import Peer
from lengthwise.errors import BundleError
from lengthwise.strict_json import to_json

IDLE_LOAD: Final = 0.3
"""Load average per core up to which wall-clock figures mean something."""
TARGETS: Final = {
    "cpu_ratio_unary": "<= 1.15",
    "cpu_ratio_floor": "<= 1.05",
    "cpu_ratio_batch32": "<= 1.03",
    "vs_peer_cpu": ">= 1.3 (MLServer with batches of 32, 2 ms), >= 2.5 (naive)",
    "added_latency_ms": "p50 <= 0.5, p99 <= 1.5",
    "batching_gain": "mixed >= 1.0, short >= 1.35",
}
_CPU_RATIOS: Final = {
    "cpu_ratio_unary": ("ours/all", "bare/all"),
    "cpu_ratio_unary_one_client": ("ours/1", "bare/1"),
    "cpu_ratio_floor": ("ours/all", "floor/all"),
    "cpu_ratio_floor_one_client": ("ours/1", "floor/1"),
    "vs_peer_cpu": ("other/all", "ours/all"),
}


def bench(config: BenchConfig) -> None:
    """Measure the service beside the bare model and any other service.

    Starts everything it needs, lets the peers take turns and compares CPU times; about 2 minutes.
    The floor of a call is its prompt tokenized and run here, and an empty call of the same server.

    Example:
      python -m benchmarks service --bundle mlruns/demo/bundle --json
      python -m benchmarks service --bundle small/bundle --beside best/bundle
    """
    folders = [config.bundle] if config.beside is None else [config.bundle, config.beside]
    try:
        subjects = [Subject.load(replace(config, bundle=folder)) for folder in folders]
    except BundleError as error:
        raise BundleError(f"{error}; or say which with --bundle") from error
    load_average = os.getloadavg()[0]
    results = [
        {"load_average": load_average, **found, "load_average_end": os.getloadavg()[0]}
        for found in _side_by_side(subjects, config)
    ]
    # One bundle's figures are the object itself, the second one's are in it.
    result = results[0] | ({"beside": results[1]} if config.beside else {})
    print(to_json(result) if config.json else "\n".join(map(format_table, results)))


def _side_by_side(subjects: Sequence[Subject], config: BenchConfig) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(peers.ours(one.folder, config.precision)) for one in subjects
        ]
        others = [] if config.peer is None else [stack.enter_context(peers.other(config.peer))]
        turns = [
            measures.taking_turns(subject, [us, *others])
            for subject, us in zip(subjects, servers, strict=True)
        ]
        for _ in range(config.rounds):
            cpu_ms = [next(each) for each in turns]
        return list(map(_figures, subjects, servers, cpu_ms))


def _figures(subject: Subject, us: Peer, cpu_ms: measures.Turns) -> dict[str, Any]:
    ratios = {
        key: measures.median_ratio(cpu_ms.get(name, ()), cpu_ms.get(other, ()))
        for key, (name, other) in _CPU_RATIOS.items()
    }
    return {
        "bundle": str(subject.folder),
        "revision": subject.model.revision,
        "precision": subject.model.precision,
        "cores": subject.cores,
        **ratios,
        "cpu_ms": {name: statistics.median(values) for name, values in cpu_ms.items()},
        "cpu_ratio_batch32": measures.batch_cpu_ratio(subject, us),
        "added_latency_ms": measures.added_latency_ms(subject, us, 300),
        "batching_gain": measures.batching_gain(subject),
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
