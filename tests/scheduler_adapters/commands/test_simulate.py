"""The `simulate` command: what it prints, and how it refuses."""

import json

import numpy as np
import pytest

from scheduler_adapters.__main__ import COMMANDS, main
from scheduler_adapters.placement import PLACEMENTS
from scheduler_adapters.policy import POLICIES
from scheduler_adapters.simulator.cluster import cluster_config as cluster_options
from scheduler_adapters.timeline.timeline import read_timeline
from tests.lengthwise.tables import logs


def simulate(capsys, *arguments: str) -> tuple[int, str, str]:
    limits = ["--num_requests=60", "--max-num-seqs=8"]
    code = main(["simulate", *limits, *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_one_seed_prints_the_same_bytes_twice(capsys):
    first = simulate(capsys, "--rate_per_s=5", "--seed=7")
    assert simulate(capsys, "--rate_per_s=5", "--seed=7") == first
    assert simulate(capsys, "--rate_per_s=5", "--seed=8") != first


def test_a_log_is_simulated_at_its_own_times(capsys, tmp_path):
    path = logs.write_lines(tmp_path / "gate.jsonl", logs.OPENAI)
    code, out, _ = simulate(capsys, f"--trace={path}", "--json")
    assert code == 0
    assert json.loads(out)["num_finished"] == 4
    named = ["--length-column=response.usage.total_tokens", "--on-bad-rows=skip"]
    code, out, _ = simulate(capsys, f"--trace={path}", *named, "--json")
    assert json.loads(out)["num_finished"] == 2
    assert code == 0


def write_scored(path, sign):
    rows = [f"5,{length},{sign * length}" for length in (400, 9)] * 30
    path.write_text("\n".join(["prompt_tokens,output_tokens,score", *rows]))


@pytest.mark.parametrize("command", ["simulate", "compare", "capacity"])
def test_scores_of_a_trace_are_used_unasked_and_are_announced(capsys, tmp_path, command):
    own, none = tmp_path / "own.csv", tmp_path / "none.csv"
    write_scored(own, 1)
    none.write_text("prompt_tokens,output_tokens\n" + "5,400\n5,9\n" * 30)
    quick = ["--seeds=1", "--tolerance=0.5"] * (command == "capacity")
    for trace, source in {own: "the trace's own", none: "synthetic (tau_b 0.75)"}.items():
        assert main([command, f"--trace={trace}", "--max_num_seqs=8", *quick]) == 0
        assert f"scores: {source}" in capsys.readouterr().out


def test_requests_too_large_for_the_memory_are_counted_and_said(capsys, caplog):
    code, out, _ = simulate(capsys, "--kv_blocks=20", "--json")
    summary = json.loads(out)
    assert code == 0
    assert 0 < summary["num_rejected"] < 60
    assert f"{summary['num_rejected']} of 60 requests need more than 20 KV blocks" in caplog.text


def test_ctrl_c_leaves_what_has_finished_and_names_the_rest(capsys, tmp_path, monkeypatch):
    path = tmp_path / "timeline.parquet"
    run_simulation = cluster_options.simulate

    def interrupted(requests, policy, *rest, **more):
        rank = policy.rank

        def rank_until_stopped(request, load):
            if request.number == 50:
                raise KeyboardInterrupt
            return rank(request, load)

        monkeypatch.setattr(policy, "rank", rank_until_stopped)
        return run_simulation(requests, policy, *rest, **more)

    monkeypatch.setattr(cluster_options, "simulate", interrupted)
    code, out, err = simulate(capsys, f"--out={path}", "--policy=slai", "--rate_per_s=1", "--json")
    summary = json.loads(out)
    assert code == 130
    assert 0 < summary["num_finished"] < 60
    assert f"{summary['num_unfinished']} requests are left out" in err
    assert np.isfinite(read_timeline(path).finished_s).sum() == summary["num_finished"]


def test_help_names_every_command_policy_and_placement(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)
    with pytest.raises(SystemExit):
        main(["simulate", "--help-all"])
    words = capsys.readouterr().out.replace(".", ",").replace(",", " ").split()
    assert POLICIES.keys() | PLACEMENTS.keys() <= set(words)


@pytest.mark.parametrize("engine", ["plain", "vllm"])
def test_a_cluster_serves_all_and_writes_where(capsys, tmp_path, engine):
    path = tmp_path / "timeline.parquet"
    arguments = ("--placement=least-kv", "--instances=3", f"--engine={engine}", f"--out={path}")
    code, out, _ = simulate(capsys, *arguments, "--json")
    summary = json.loads(out)
    assert code == 0
    assert (summary["placement"], summary["instances"]) == ("least-kv", 3)
    assert summary["num_finished"] == 60
    assert set(read_timeline(path).instance) == {0, 1, 2}
    _, out, _ = simulate(capsys, *arguments)
    assert "placement least-kv over 3 instances: 0 migrations" in out


@pytest.mark.parametrize(
    ("options", "figure", "said"),
    [
        (
            ["--placement=round-robin", "--outage", "0@0.5-1", "1@0.7"],
            "num_replaced",
            "times a request was placed again",
        ),
        (
            ["--placement=least-kv", "--telemetry-period-s=1", "--telemetry-max-age-s=0.5"],
            "num_fallbacks",
            "requests went to the shortest queue",
        ),
    ],
)
def test_outages_and_too_old_views_are_counted(capsys, options, figure, said):
    arguments = ("--instances=3", "--rate-per-s=20", *options)
    _, out, _ = simulate(capsys, *arguments, "--json")
    found = json.loads(out)
    assert found["num_finished"] == 60
    assert 0 < found[figure] < 60
    _, out, _ = simulate(capsys, *arguments)
    assert f"{found[figure]} {said}" in out


def test_phasor_has_elastic_instances_and_a_cost_of_the_profile(capsys, tmp_path):
    cost = tmp_path / "cost.json"
    content = {"format": "lengthwise-prefill-cost/1", "alpha": 7e5, "beta": 3e10, "r2": 1.0}
    content |= {"peak_flop_per_s": 1e14, "model": "qwen2.5-7b", "device": "v100-32g"}
    cost.write_text(json.dumps(content))
    pools = ["--placement=phasor", "--instances=4", "--prefill-instances=1"]
    pools += ["--elastic-instances=2", f"--placement-settings={json.dumps({'cost': str(cost)})}"]
    code, out, err = simulate(capsys, *pools, "--profile=qwen2.5-7b@v100-32g", "--json")
    assert code == 0, err
    assert json.loads(out)["num_finished"] == 60
    code, _, err = simulate(capsys, *pools, "--profile=qwen2.5-7b@a100-80g")
    assert code == 2
    assert "calibrated for device 'v100-32g'" in err
    assert "calibrate it for 'a100-80g'" in err
    code, _, err = simulate(capsys, *pools[:-1], "--profile=qwen2.5-7b@v100-32g")
    assert code == 0, err


def test_requests_that_reason_are_told_by_what_their_readers_saw(capsys):
    arguments = ["--lengths=alpaca-eval", "--policy=pascal", "--rate-per-s=20"]
    _, out, _ = simulate(capsys, *arguments, "--json")
    summary = json.loads(out)
    assert summary["blocking_s"]["count"] == summary["qoe"]["count"] == 60
    assert 0 <= summary["qoe_violations"] <= 1
    assert sum(one["count"] for one in summary["first_answer_tail"]) > 40
    assert "by_class" not in summary
    classes = '--classes={"a": {"share": 0.5}, "b": {"share": 0.5}}'
    _, text, _ = simulate(capsys, *arguments, classes)
    assert "lengths of alpaca-eval" in text
    assert "qoe below 0.95" in text
    assert "of class 'a'" in text
    assert "tail of first_answer_s" in text


def test_nothing_is_said_of_reasoning_where_there_is_none(capsys):
    _, out, _ = simulate(capsys)
    assert "qoe" not in out
    assert "blocking_s" not in out
    assert "nan" not in out
