"""Vidur's own runs, reproduced with its step times: first token and finish of every request."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from benchmarks.speed.simulator import TABLES_FILE, golden_instance
from lengthwise.tables.reading import read_table
from scheduler_adapters.policies.prefill_first import PrefillFirst
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.simulator.latency.time_tables import TableLatency
from scheduler_adapters.simulator.simulate import simulate_replicas
from scheduler_adapters.workload.traces import read_trace

NAME = re.compile(
    r"(?P<scheduler>sarathi|vllm)_r(?P<replicas>\d+)_n(?P<count>\d+)_q(?P<rate>[\d.]+?)"
    r"(_blocks(?P<blocks>\d+))?(_chunk(?P<chunk>\d+))?"
)
"""Scheduler, _r replicas, _n requests, _q rate, _blocks KV blocks, _chunk budget."""


@pytest.mark.data
def test_the_golden_runs_of_vidur_are_reproduced(data_folder, record_property):
    folder = data_folder / "vidur-golden"
    latency, paths = TableLatency.load(folder / TABLES_FILE), sorted(folder.glob("*.parquet"))
    assert sum(len(read_trace(path)) for path in paths) == 15_000
    for path in paths:
        named = NAME.fullmatch(path.stem)
        kind, budget = {"sarathi": (Sarathi, 512), "vllm": (PrefillFirst, 4096)}[named["scheduler"]]
        max_tokens = int(named["chunk"] or budget)
        instance = replace(golden_instance(latency), max_tokens=max_tokens)
        if named["blocks"]:
            instance = replace(instance, kv_blocks=int(named["blocks"]))
        make, replicas = partial(kind, max_tokens=max_tokens), int(named["replicas"])
        ours = simulate_replicas(read_trace(path), make, instance, replicas=replicas)
        golden = read_table(path, ["first_token_s", "finished_s"])
        for name in ("first_token_s", "finished_s"):
            difference_s = np.abs(getattr(ours, name) - golden[name].to_numpy()).max()
            record_property(f"{path.stem} {name}", difference_s)
            assert difference_s <= 1e-9, f"{path.name}: {name} differs by {difference_s} s"
