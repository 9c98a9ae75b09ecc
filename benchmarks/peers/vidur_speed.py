"""Vidur beside our simulator on the golden requests: requests per CPU second, in turn.

    python -m benchmarks vidur-speed CHECKOUT --golden $LENGTHWISE_DATA/vidur-golden

A checkout of microsoft/vidur runs with the golden time tables in the place of trained predictors,
so that it computes the golden results. Its Python packages must be installed (ddsketch, pandas,
scikit-learn). Only event loops are timed, each run in a process of its own.
"""

import argparse
import atexit
import gc
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.speed.service_measures import took_s
from benchmarks.speed.simulator import TABLES_FILE, alone, golden_instance, per_cpu_s
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.simulator.latency.time_tables import TABLE_NAMES, TableLatency
from scheduler_adapters.simulator.simulate import simulate_replicas
from scheduler_adapters.workload.requests import Requests
from scheduler_adapters.workload.traces import read_trace

_UNUSED = ("wandb", "plotly_express", "fasteners")
"""Imports of Vidur that no run needs."""


def run_vidur(checkout: Path, tables: Path, requests: Requests, replicas: int) -> float:
    """Return the requests per CPU second of Vidur's Sarathi; needs a process of its own."""
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
        simulator = _simulator(trace, replicas, folder)
        gc.freeze()  # the tables are no work of Vidur's
        return len(requests) / took_s(time.process_time, simulator.run)


def run_ours(tables: Path, requests: Requests, replicas: int) -> float:
    """Return the requests per CPU second of our compiled Sarathi, after a run that compiles."""
    instance = golden_instance(TableLatency.load(tables))
    run = partial(simulate_replicas, requests, Sarathi, instance, replicas=replicas)
    return per_cpu_s(partial(run, loop="compiled"), len(requests), 5)


def _import_vidur(checkout: Path) -> None:
    sys.path.insert(0, str(checkout))
    for name in _UNUSED:
        if find_spec(name) is None:
            stub: Any = ModuleType(name)
            stub.InterProcessReaderWriterLock = None
            sys.modules[name] = stub
    import_module("vidur.simulator")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("checkout", type=Path, help="of microsoft/vidur 7d475133")
    parser.add_argument("--golden", type=Path, required=True, help="folder of the golden runs")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (3)")
    given = parser.parse_args()
    tables = given.golden / TABLES_FILE
    for name, replicas in (("sarathi_r1_n1000_q6.45", 1), ("sarathi_r8_n10000_q51.6", 8)):
        requests = read_trace(given.golden / f"{name}.parquet")
        for _ in range(given.rounds):
            ours = alone(run_ours, tables, requests, replicas)
            theirs = alone(run_vidur, given.checkout, tables, requests, replicas)
            print(name, ours, round(theirs), f"{ours / theirs:.0f}x", flush=True)


if __name__ == "__main__":
    main()
