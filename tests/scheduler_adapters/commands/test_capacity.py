"""`capacity`: loads with their spread, what is left out of them, and the bisection."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from lengthwise.progress import Progress
from scheduler_adapters.__main__ import main
from scheduler_adapters.commands.capacity import CapacityConfig, SearchConfig, capacity_of
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.simulator.cluster import cluster_config
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.workload.requests import make_requests

REQUESTS = make_requests(prompt_tokens=[8] * 40, output_tokens=list(range(1, 41)))


def test_a_looser_target_allows_a_higher_rate(capsys):
    rates = []
    for most_s in (10, 40):
        arguments = ["--num_requests=150", "--max_num_seqs=8", "--seeds=1", "--tolerance=0.1"]
        slo = '--slo={"e2e_s.p90": ' + str(most_s) + "}"
        assert main(["capacity", *arguments, slo, "--policies=[fcfs]", "--json"]) == 0
        rates.append(json.loads(capsys.readouterr().out)["capacity"][0]["mean"])
    assert 0 < rates[0] < rates[1]


def test_more_clients_than_seats_break_a_target_on_the_queue(capsys, tmp_path):
    # With 8 seats nobody queues among 8 clients; the ninth waits for a seat.
    arguments = ["--num_requests=120", "--max_num_seqs=8", "--seeds=2", "--by=concurrency"]
    arguments += ['--slo={"queueing_s.p50": 0.1}', "--policies=[fcfs]", f"--out={tmp_path}"]
    assert main(["capacity", *arguments, "--tolerance=0.001", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["capacity"]
    assert all(8 <= clients <= 16 for clients in row["clients"])
    assert pd.read_csv(tmp_path / "capacity.csv")["mean"][0] == row["mean"]
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"capacity.csv", "capacity.svg", "report.html"}


def test_an_interrupted_search_says_what_is_left_out(capsys, monkeypatch):
    run_simulation = cluster_config.simulate
    searched = []

    def interrupted(requests, policy, *rest, **more):
        searched.append(policy.name)
        if searched[-1] != "fcfs":
            raise KeyboardInterrupt
        return run_simulation(requests, policy, *rest, **more)

    monkeypatch.setattr(cluster_config, "simulate", interrupted)
    arguments = ["--num_requests=40", "--max_num_seqs=8", "--seeds=1", "--tolerance=0.5"]
    assert main(["capacity", *arguments, "--policies=[fcfs, pars]", "--json"]) == 130
    captured = capsys.readouterr()
    assert [row["policy"] for row in json.loads(captured.out)["capacity"]] == ["fcfs"]
    assert "1 of 2 searches are left out" in captured.err


def test_a_seed_with_only_too_long_requests_is_not_called_slow(caplog):
    # Of the requests of seed 0 one fits, of those of seed 1 none.
    arguments = ["--kv_blocks=2", "--seeds=2", "--tolerance=0.5", "--policies=[fcfs]"]
    assert main(["capacity", *arguments]) == 0
    assert "1999 of 2000 requests need more than 2 KV blocks" in caplog.text
    assert "not one request fits into 2 KV blocks" in caplog.text
    assert "misses a target" not in caplog.text


@pytest.mark.parametrize("by", ["rate", "concurrency"])
def test_a_search_that_ends_at_its_limit_says_so(by, capsys, caplog):
    arguments = ["--num_requests=40", "--seeds=1", "--policies=[fcfs]", f"--by={by}"]
    assert main(["capacity", *arguments, '--slo={"ttft_s.p99": 1e9}']) == 0
    assert "fcfs meets the targets" in caplog.text
    assert "seed 0." in capsys.readouterr().out  # and no others


def test_the_oracle_is_given_lengths_under_any_name():
    config = SearchConfig(
        policies=["best", "pars"], settings={"best": {"policy": "oracle"}}, scores="constant"
    )
    assert config.scored_for("best", REQUESTS).score.tolist() == list(range(1, 41))
    assert set(config.scored_for("pars", REQUESTS).score) == {0.0}


def test_a_caption_counts_the_seeds():
    assert SearchConfig(seeds=1).searched(7).endswith("seed 0.")
    assert SearchConfig(seeds=3, by="concurrency").searched(7).endswith("seed 0 and 2 more.")


CLASSES = {"paying": {"share": 0.25, "tbt_s": 0.1}, "free": {"share": 0.75, "tbt_s": 0.5}}


def test_a_target_of_one_class_is_about_its_requests_only():
    settings = {"classes": CLASSES, "scores": "constant", "num_requests": 300, "seeds": 1}
    most_s = {"paying": 0.1, "free": 0.3}
    targets = {f"tbt_s.p99.{name}": limit for name, limit in most_s.items()}
    config = SearchConfig(policies=["slai"], slo=targets, **settings)
    requests = config.load()
    found = capacity_of("slai", config, requests, Progress(1))

    def gap_s(name: str, load: float) -> float:
        timeline, _ = config.serve(config.at_rate(requests, load), SLAI)
        return summarize(timeline.take(timeline.requests.user_class == name)).tbt_s.p99

    assert all(gap_s(name, found) <= limit for name, limit in most_s.items())
    beyond = found * (1 + 2 * config.tolerance)
    assert any(gap_s(name, beyond) > limit for name, limit in most_s.items())
    for_all = replace(config, slo={"tbt_s.p99": most_s["paying"]})
    assert capacity_of("slai", for_all, requests, Progress(1)) < found


def cluster(**changes) -> CapacityConfig:
    settings = {"policies": ["fcfs"], "num_requests": 120, "max_num_seqs": 4, "seeds": 1}
    settings |= {"by": "concurrency", "slo": {"queueing_s.p50": 0.1}, "scores": "constant"}
    return CapacityConfig(**settings | {"placement": "shortest-queue", "instances": 3} | changes)


def test_the_load_of_a_cluster_is_told_per_instance():
    config = cluster()
    # Each has four seats; of fifteen clients, three queue.
    assert capacity_of("fcfs", config, config.load(), Progress(1)) >= 4
    assert "3 instances under shortest-queue; " in config.searched(120)
    elastic = cluster(placement="phasor", instances=4, prefill_instances=1, elastic_instances=2)
    assert "4 instances, 1 to prefill, 2 elastic under phasor; " in elastic.searched(120)
