"""`check-golden`: differences to the runs of another simulator with the same step times."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from lengthwise.command_line.options import POSITIONAL
from lengthwise.errors import DataError
from lengthwise.tables.reading import read_table
from scheduler_adapters.policies.prefill_first import PrefillFirst
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.simulator.latency.time_tables import TableLatency
from scheduler_adapters.simulator.simulate import simulate_replicas
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Requests
from scheduler_adapters.workload.traces import read_trace

TOLERANCE_S = 1e-9
TABLES_FILE = "tables.npz"
_NAME = re.compile(
    r"(?P<scheduler>sarathi|vllm)_r(?P<replicas>\d+)_n(?P<count>\d+)_q(?P<rate>[\d.]+?)"
    r"(_blocks(?P<blocks>\d+))?(_chunk(?P<chunk>\d+))?"
)


@dataclass(frozen=True, kw_only=True)
class GoldenConfig:
    """The golden runs to compare with."""

    folder: Path = field(metadata=POSITIONAL)
    """tables.npz and files such as sarathi_r1_n1000_q6.45_blocks5000.parquet."""


def golden_setting(path: Path, latency: LatencyModel) -> tuple[Callable[[], Policy], Instance, int]:
    """Return the maker of policies, the instance and the replicas that a golden file's name gives.

    It names the scheduler, _r replicas, _n requests, _q rate, _blocks KV blocks, _chunk budget.
    """
    match = _NAME.fullmatch(path.stem)
    if match is None:
        raise DataError(
            "its name gives no setting; use SCHEDULER_rREPLICAS_nREQUESTS_qRATE"
            "[_blocksBLOCKS][_chunkTOKENS] with scheduler sarathi or vllm",
            path=path,
        )
    kind, budget = {"sarathi": (Sarathi, 512), "vllm": (PrefillFirst, 4096)}[match["scheduler"]]
    max_tokens = int(match["chunk"] or budget)
    blocks = int(match["blocks"] or 30208)
    instance = replace(golden_instance(latency), max_tokens=max_tokens, kv_blocks=blocks)
    return partial(kind, max_tokens=max_tokens), instance, int(match["replicas"])


def golden_instance(latency: LatencyModel) -> Instance:
    """Return the instance of the golden runs."""
    return Instance(
        latency=latency,
        kv_blocks=30208,
        max_num_seqs=128,
        max_tokens=512,
        decode_headroom_blocks=1,
    )


def run(config: GoldenConfig) -> int:
    """Run every golden file of a folder and compare each request's first token and finish.

    Example:
      python -m scheduler_adapters check-golden path/to/vidur-golden

    Prints the largest difference per file; exit code 1 where one exceeds 1e-9 s.
    """
    paths = sorted(config.folder.glob("*.parquet"))
    if not paths:
        raise DataError("holds no golden runs (*.parquet)", path=config.folder)
    latency = TableLatency.load(config.folder / TABLES_FILE)
    worst_s = 0.0
    for path in paths:
        requests = read_trace(path)
        difference_s = largest_difference_s(path, simulate_golden(path, requests, latency))
        verdict = "equal" if difference_s <= TOLERANCE_S else "DIFFERENT"
        print(f"{path.name:48} {len(requests):6d} requests  {difference_s:.1e} s  {verdict}")
        worst_s = max(worst_s, difference_s)
    return 0 if worst_s <= TOLERANCE_S else 1


def simulate_golden(path: Path, requests: Requests, latency: TableLatency) -> Timeline:
    """Return the timeline of a golden file's requests in the setting its name gives."""
    make_policy, instance, replicas = golden_setting(path, latency)
    return simulate_replicas(requests, make_policy, instance, replicas=replicas)


def largest_difference_s(path: Path, timeline: Timeline) -> float:
    """Return the largest difference of first tokens and finishes; infinite where one is missing."""
    golden = read_table(path, ["first_token_s", "finished_s"])[["first_token_s", "finished_s"]]
    ours_s = np.column_stack([timeline.first_token_s, timeline.finished_s])
    differences_s = np.abs(ours_s - golden.to_numpy())
    return float("inf") if np.isnan(differences_s).any() else float(differences_s.max())
