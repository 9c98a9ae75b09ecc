import json
from functools import partial

import numpy as np

from benchmarks.__main__ import main
from scheduler_adapters.placement import load_placement
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.cluster import simulate_cluster
from scheduler_adapters.simulator.cluster.placement_views import TelemetryAge
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.timeline.timeline import write_timeline
from scheduler_adapters.workload.requests import make_requests


def test_a_simulated_clusters_record_is_replayed_without_error(tmp_path, capsys):
    random = np.random.default_rng(2)
    requests = make_requests(
        prompt_tokens=random.integers(50, 900, 60),
        output_tokens=np.full(60, 90),
        reasoning_tokens=random.integers(1, 80, 60),
        arrival_s=np.cumsum(random.exponential(0.02, 60)),
    )
    run = simulate_cluster(
        requests,
        load_placement("pascal"),
        partial(load_policy, "pascal"),
        [Instance.preset("llama-3-8b@l40s", kv_blocks=400)] * 3,
        age=TelemetryAge(period_s=0.2),
        keeps_kv=False,
    )
    moved = {one.request_id: one for one in run.migrations}
    assert len(moved) > 5
    assert {one.kv_blocks for one in moved.values()} == {0}  # nothing is copied
    write_timeline(run.timeline, tmp_path / "record.jsonl")
    settings = ["--policy", "pascal", "--profile", "llama-3-8b@l40s", "--kv-blocks", "400"]
    replay = ["replay-cluster", str(tmp_path / "record.jsonl"), *settings]
    assert main([*replay, "--json"]) == 0
    errors = {row["error"] for row in json.loads(capsys.readouterr().out).values()}
    assert errors <= {0.0, None}
    assert main([*replay, "--instances", "2"]) == 0
    assert "share of instance 3" not in capsys.readouterr().out
