"""`validate` on a short trace: what it prints, and that the figures come from both sides."""

import json

import pytest

from scheduler_adapters.__main__ import main
from scheduler_adapters.commands import validate as vllm_validate

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-requests=3"], "num_requests is 3"),
        (["--pieces=1"], "pieces is 1"),
        (["--repeats=0"], "repeats is 0"),
        (["--rate-per-s=0"], "rate_per_s is 0"),
        (["--policy=nobody"], "no policy named 'nobody'"),
        (["--policy=slai", '--settings={"default_tbt_s": -3}'], "default_tbt_s"),
        (["--trace=nowhere.csv"], "nowhere.csv"),
    ],
)
def test_bad_input_is_one_line_before_a_model_is_made(capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(vllm_validate, "open_driver", None)
    assert main(["validate", *arguments]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("error:") == 1
