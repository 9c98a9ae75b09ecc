"""Vidur's own speed on the golden requests: from a checkout of it, or recorded and scaled.

A checkout runs with the golden time tables in the place of trained predictors, so that it computes
the golden results; its Python packages must be installed (ddsketch, pandas, scikit-learn).
"""

import atexit
import gc
import heapq
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import pandas as pd

from lengthwise.errors import ConfigError
from scheduler_adapters.simulator.latency.time_tables import TABLE_NAMES
from scheduler_adapters.workload.requests import Requests

RECORDED_PER_CPU_S: Final = {"sarathi_r1": 1089.0, "sarathi_r8": 1073.0}
"""Requests per CPU second of microsoft/vidur 7d475133 on the golden lists, on a calm machine on
which our engine in plain Python made 37,000."""
RECORDED_LOOP_S: Final = 0.032
"""CPU seconds of `calibration_loop` there. The loop is younger than the figures: this follows from
.066 on a machine on which the same engine made 18,100."""
_UNUSED = ("wandb", "plotly_express", "fasteners")
"""What Vidur imports, and does not use here."""


def calibration_loop() -> float:
    """Return the CPU seconds of a fixed loop like a simulator's: heap, dictionaries, objects, a
    little numpy. The fastest of five counts."""
    return min(_loop_s() for _ in range(5))


def _loop_s() -> float:
    start_s = time.process_time()
    heap: list[tuple[float, int]] = []
    counts: dict[int, float] = {}
    for number in range(60_000):
        heapq.heappush(heap, (number * 7919 % 10_007 / 10_007, number))
        if len(heap) > 100:
            at_s, first = heapq.heappop(heap)
            counts[first % 1000] = counts.get(first % 1000, 0.0) + at_s
        if number % 50 == 0:
            counts[-1] = float(np.mean([each[0] for each in heap]))
    return time.process_time() - start_s


def scaled_per_cpu_s() -> dict[str, float]:
    """Return the recorded figures as this machine is likely to make them now."""
    factor = RECORDED_LOOP_S / calibration_loop()
    return {name: round(figure * factor) for name, figure in RECORDED_PER_CPU_S.items()}


def run_vidur(
    checkout: Path, tables: Path, requests: Requests, *, replicas: int, repeats: int
) -> dict[str, float]:
    """Run Vidur's Sarathi scheduler: requests per CPU second, of the fastest of `repeats`.

    Wants a process of its own.

    Only its event loop is timed, with the metrics that it keeps by default.

    Raises:
        ConfigError: a package that Vidur needs is missing.
    """
    logging.disable()
    _import_vidur(checkout)
    _use_tables(tables)
    with tempfile.TemporaryDirectory(prefix="lengthwise-") as folder:
        trace = Path(folder) / "trace.csv"
        columns = {
            "arrived_at": requests.arrival_s,
            "num_prefill_tokens": requests.prompt_tokens,
            "num_decode_tokens": requests.output_tokens,
        }
        pd.DataFrame(columns).to_csv(trace, index=False)
        taken_s = []
        for _ in range(repeats):
            simulator = _simulator(trace, replicas, folder)
            gc.freeze()  # the tables are no work of Vidur's
            start_s = time.process_time()
            simulator.run()
            taken_s.append(time.process_time() - start_s)
    return {"per_cpu_s": round(len(requests) / min(taken_s))}


def _import_vidur(checkout: Path) -> None:
    sys.path.insert(0, str(checkout))
    for name in _UNUSED:
        if find_spec(name) is None:
            stub: Any = ModuleType(name)
            stub.InterProcessReaderWriterLock = None
            sys.modules[name] = stub
    try:
        import_module("vidur.simulator")
    except ImportError as error:
        raise ConfigError(f"vidur needs a package: {error}; install it") from error


def _use_tables(path: Path) -> None:
    """Let Vidur's predictor look up the golden tables, as often as it always does."""
    with np.load(path) as tables:
        linear_ms, kv_save_ms, decode_ms, prefill_ms = (tables[name] for name in TABLE_NAMES)

    def by_tokens(values: Any) -> dict[Any, float]:
        return {(tokens,): value for tokens, value in enumerate(values.tolist())}

    def by_grid(values: Any, key: Callable[[int, int], tuple[int, int]]) -> dict[Any, float]:
        return {key(*at): value for at, value in np.ndenumerate(values)}

    nothing = by_tokens(np.zeros(len(linear_ms)))
    predictions = dict.fromkeys(
        ("attn_post_proj", "mlp_up_proj", "mlp_down_proj", "mlp_act", "attn_rope", "add"), nothing
    )
    predictions |= dict.fromkeys(("input_layernorm", "post_attention_layernorm"), nothing)
    predictions["attn_pre_proj"] = by_tokens(linear_ms)
    predictions["attn_kv_cache_save"] = by_tokens(kv_save_ms)
    predictions["attn_decode"] = by_grid(decode_ms, lambda count, row: (count, 64 * row))
    predictions["attn_prefill"] = by_grid(prefill_ms, lambda row, chunk: (64 * row, chunk**2))
    name = "vidur.execution_time_predictor.sklearn_execution_time_predictor"
    predictor: Any = import_module(name).SklearnExecutionTimePredictor
    predictor._train_models = lambda self: {}
    predictor._predict_from_models = lambda self: predictions


def _simulator(trace: Path, replicas: int, folder: str) -> Any:
    """A simulator in the setting of the golden runs, which writes nothing."""
    for counted in import_module("vidur.entities.base_entity").BaseEntity.__subclasses__():
        counted._id = -1  # replicas are counted on from run to run, and then not found
    vidur: Any = import_module("vidur.config.config")
    config = vidur.SimulationConfig(
        log_level="error",
        cluster_config=vidur.ClusterConfig(
            num_replicas=replicas,
            global_scheduler_config=vidur.RoundRobinGlobalSchedulerConfig(),
            replica_scheduler_config=vidur.SarathiSchedulerConfig(
                batch_size_cap=128, num_blocks=30208, chunk_size=512
            ),
            replica_config=vidur.ReplicaConfig(model_name="meta-llama/Meta-Llama-3-8B"),
        ),
        request_generator_config=vidur.TraceRequestGeneratorConfig(
            trace_file=str(trace),
            prefill_scale_factor=1.0,
            decode_scale_factor=1.0,
            time_scale_factor=1.0,
        ),
        metrics_config=vidur.MetricsConfig(
            output_dir=folder, cache_dir=folder, enable_chrome_trace=False, store_plots=False
        ),
    )
    simulator = import_module("vidur.simulator").Simulator(config)
    atexit.unregister(simulator._write_output)
    return simulator
