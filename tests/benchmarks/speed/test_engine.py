"""Figures of the engine benchmark on a small load."""

import json

import pytest

from benchmarks.__main__ import main

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def test_the_benchmark_prints_one_object_with_the_cost_of_a_step(capsys):
    arguments = ["--policy=pascal", "--running=8", "--waiting=20", "--steps=40", "--json"]
    arguments += ["--throughput-rounds=1", "--late-scores-s=0.05"]
    assert main(["engine-step", *arguments]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["policy"], result["running"], result["waiting"]) == ("pascal", 8, 20)
    # What ours adds is part of what ours takes, and more than an override that does nothing adds.
    assert 0 < result["added_us_per_step"] < result["step_us_ours"]
    assert 0 < result["added_us_empty"] < result["added_us_per_step"]
    low, high = result["added_us_per_step_low"], result["added_us_per_step_high"]
    assert low <= result["added_us_per_step"] <= high
    # Without thoughts that end, and with blocks for all, PASCAL makes the batches of FCFS.
    assert result["steps_per_burst_ours"] == result["steps_per_burst_stock"] > 90
    ratio = result["tokens_per_s_ours"] / result["tokens_per_s_stock"]
    assert result["throughput_ratio"] == pytest.approx(ratio)


def test_with_prefix_caching_half_of_each_prompt_is_found(capsys):
    arguments = ["--policy=slai", "--running=8", "--waiting=20", "--steps=40", "--json"]
    more = ["--throughput-rounds=1", "--prefix-caching"]
    assert main(["engine-step", *arguments, *more]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["prefix_caching"]
    assert 0 < result["added_us_empty"] < result["added_us_per_step"]
    # SLAI makes other batches than FCFS does, and no more of them for want of tokens.
    assert result["steps_per_burst_ours"] < 1.1 * result["steps_per_burst_stock"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [("--running=0", "running is 0"), ("--policy=nobody", "no policy named 'nobody'")],
)
def test_bad_input_is_one_line(capsys, argument, message):
    assert main(["engine-step", argument]) == 2
    assert message in capsys.readouterr().err
