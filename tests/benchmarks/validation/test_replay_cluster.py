import json
from functools import partial

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.validation.replay_cluster import figure_errors
from scheduler_adapters.placement import load_placement
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.cluster import simulate_cluster
from scheduler_adapters.simulator.cluster.placement_views import TelemetryAge
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.timeline.timeline import timeline_from_token_times, write_timeline
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


def served(times_s, instance, migrations):
    requests = make_requests(prompt_tokens=[5] * 4, output_tokens=[2] * 4, arrival_s=np.arange(4.0))
    token_s = [[arrival + times_s, arrival + 2 * times_s] for arrival in range(4)]
    return timeline_from_token_times(requests, token_s, instance=instance, migrations=migrations)


def test_every_figure_of_both_runs_has_an_error_but_no_shares_do():
    measured = served(0.2, [7, 7, 7, 1], [1, 0, 0, 0])
    errors = {row.figure: row for row in figure_errors(measured, served(0.3, [0, 1, 0, 0], 0))}
    assert errors["ttft_s.p99"][1:] == pytest.approx((0.2, 0.3, 0.5))
    assert errors["e2e_s.mean"].error == pytest.approx(0.5)
    assert errors["moves per request"][1:] == (0.25, 0.0, -1.0)
    assert [errors[f"share of instance {n}"].error for n in (1, 2)] == [0, 0]
    assert "ttfat_s.mean" not in errors  # no request thinks
