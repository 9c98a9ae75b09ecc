"""`validate` on a short trace: its output, and figures from both sides."""

import json

import pytest

from benchmarks.__main__ import main

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def test_the_simulator_with_fitted_steps_comes_near_the_engine(capsys):
    # Few seats, so that there is a queue and its order has something to say.
    arguments = ["--policy=pars", "--shape=tiny", "--num-requests=80", "--pieces=4"]
    arguments += ["--rate-per-s=30", "--max-num-seqs=8", "--repeats=2", "--json"]
    assert main(["validate", *arguments]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["num_requests"], result["repeats"], result["clock"]) == (40, 2, "steady")
    assert {"e2e_mape", "tpot_mape", "ttft_mape"} <= result.keys()
    # Wide, for machines shared with others: a simulator that got queueing wrong is further off.
    assert abs(result["e2e_bias"]) < 0.5
    assert 0 < result["e2e_mape"] < 0.6
    assert 0 < result["e2e_noise_mape"] < result["e2e_floor_mape"] < 0.8
