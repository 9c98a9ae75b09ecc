"""Run every measure and set the targets beside the results."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from scoring_service.bench import measures, peers
from scoring_service.bench.config import BenchConfig
from scoring_service.bench.workload import PromptMaker
from scoring_service.bundle import ModelBundle
from scoring_service.errors import BundleError, LengthwiseError
from scoring_service.ranker.model import RankerModel

IDLE_LOAD: Final = 0.3
"""Load average per core up to which wall-clock figures mean something."""
TARGETS: Final = {
    "cpu_ratio_unary": "<= 1.15",
    "cpu_ratio_batch32": "<= 1.03",
    "throughput_ratio": ">= 0.90",
    "vs_mlserver_cpu": ">= 1.3 (batches of 32, 2 ms)",
    "vs_mlserver_best_cpu": "no goal (no batching)",
    "vs_naive_cpu": ">= 2.5",
    "added_latency_ms": "p50 <= 0.5, p99 <= 1.5",
    "batching_gain": "mixed >= 1.0, short >= 1.35",
    "huge_prompt_ms": "<= 0.35",
    "batch_invariance": "<= 1e-5",
    "overload": "goodput >= 0.90, reject p99 <= 2 ms, 0 expired computed",
    "memory": "<= 200 MB, growth <= 0.05",
    "cold_start_s": "<= 1.5",
    "reload": "0 failed, p99 ratio <= 2",
}


def run_bench(config: BenchConfig) -> dict[str, Any]:
    """All figures by key; progress goes to stderr. Takes about three minutes.

    Raises:
        BundleError: there is no bundle to serve, or not of that precision.
    """
    folder = Path(config.bundle)
    try:
        bundle = ModelBundle.load(folder)
    except BundleError as error:
        raise BundleError(f"{error}; or say which with --bundle") from error
    _say("loading the model")
    model = RankerModel.load(bundle, config.precision)
    tokenizer = Tokenizer.from_file(str(bundle.tokenizer_path))
    make = PromptMaker(tokenizer, bundle.manifest.max_prompt_tokens, config.seed)
    result: dict[str, Any] = {
        "bundle": str(folder),
        "revision": model.revision,
        "precision": model.precision,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
    }
    result |= _side_by_side(config, model, make)
    result |= _alone(config, model, tokenizer, make)
    return {**result, "load_average_end": os.getloadavg()[0]}


def _side_by_side(config: BenchConfig, model: RankerModel, make: PromptMaker) -> dict[str, Any]:
    folder, result = Path(config.bundle), dict[str, Any]()
    cores = len(os.sched_getaffinity(0))
    with ExitStack() as stack:
        us = stack.enter_context(peers.ours(folder, config.precision))
        running = [us, stack.enter_context(peers.naive(folder))]
        if config.mlserver:
            _say("starting MLServer (the first time it is installed)")
            try:
                python = peers.mlserver_python()
                for batching in (True, False):
                    peer = peers.mlserver(folder, config.precision, python, batching=batching)
                    running.append(stack.enter_context(peer))
            except LengthwiseError as error:
                _say(f"no MLServer: {error}")
        _say("CPU per request, in turns")
        turns = measures.cpu_in_turns(
            running, model, make, rounds=config.rounds, slice_size=config.slice_size, cores=cores
        )
        result["cpu_ms"] = turns.medians()
        result["cpu_ratio_unary"] = turns.ratio("ours/all", "bare/all")
        result["cpu_ratio_unary_one_client"] = turns.ratio("ours/1", "bare/1")
        result["vs_naive_cpu"] = turns.ratio("naive/all", "ours/all")
        result["vs_mlserver_cpu"] = turns.ratio("mlserver/all", "ours/all")
        result["vs_mlserver_best_cpu"] = turns.ratio("mlserver_best/all", "ours/all")
        result["vs_mlserver_best_cpu_one_client"] = turns.ratio("mlserver_best/1", "ours/1")
        _say("batches, throughput, latency, invariance")
        result["cpu_ratio_batch32"] = measures.batch_cpu_ratio(
            us, model, make, rounds=2 * config.rounds
        )
        result["throughput_ratio"], result["requests_per_s"] = measures.throughput_ratio(
            us,
            model,
            make,
            rounds=config.rounds,
            slice_size=3 * config.slice_size,
            cores=cores,
        )
        result["added_latency_ms"] = measures.added_latency_ms(us, model, make, 300)
        result["batch_invariance"] = measures.batch_invariance(us.target, make, 128)
    return result


def _alone(
    config: BenchConfig,
    model: RankerModel,
    tokenizer: Tokenizer,
    make: PromptMaker,
) -> dict[str, Any]:
    folder, result = Path(config.bundle), dict[str, Any]()
    _say("batching, tokenization")
    result["batching_gain"] = measures.batching_gain(model, make, config.rounds)
    result["huge_prompt_ms"] = measures.huge_prompt_ms(model, tokenizer, make)
    _say("overload")
    cores = len(os.sched_getaffinity(0))
    result["overload"] = measures.overload(folder, config.precision, make, config.overload_s, cores)
    _say("cold start, reload")
    result["cold_start_s"] = measures.cold_start_s(folder, config.precision, 5)
    with tempfile.TemporaryDirectory() as scratch:
        result["reload"] = measures.reload(
            folder, config.precision, make, Path(scratch), config.overload_s / 2
        )
    _say(f"memory over {config.num_shapes} shapes")
    result["memory"] = measures.memory(folder, config.precision, make, config.num_shapes)
    return result


def print_table(result: Mapping[str, Any]) -> None:
    """The figures beside their targets."""
    print(f"{result['bundle']} {result['precision']} on {result['cores']} cores")
    if result["load_average"] > IDLE_LOAD * result["cores"]:
        print(
            f"  The machine was busy (load {result['load_average']:.1f}): trust the CPU ratios; "
            "latencies, throughput and overload depend on the other work."
        )
    for key, target in TARGETS.items():
        print(f"  {key:20} {_shown(result[key]):58} {target}")


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(part)}" for key, part in value.items())
    return "not measured" if value is None else f"{value:.3g}"


def _say(what: str) -> None:
    if sys.stderr.isatty():
        print(f"bench: {what}", file=sys.stderr)
