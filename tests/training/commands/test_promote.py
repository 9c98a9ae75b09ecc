"""`promote`: only what is provably better serves, or what a hand chose."""

import pandas as pd

from lengthwise.bundle import MANIFEST
from tests.training.commands.conftest import TEST, champion


def test_a_version_is_promoted_only_where_it_is_provably_better(register, training, data):
    register("gated", 3, 0, 0)
    status, result = training("promote", "gated", 1, "--data", data)
    assert (status, result["champion"], result["forced"]) == (0, True, False)
    status, result = training("promote", "gated", 2, "--data", data)
    assert (status, champion(training, "gated")) == (0, "2")
    assert result["difference_ci"][0] > 0
    status, result = training("promote", "gated", 3, "--data", data)
    assert (status, result["champion"], champion(training, "gated")) == (1, False, "2")
    assert "does not beat" in result["verdict"]
    assert training("promote", "gated", 2)[1]["champion"] is True


def test_a_promotion_by_hand_needs_no_proof_and_is_recorded(register, training, data, tmp_path):
    register("by-hand", 0, 3)
    training("promote", "by-hand", 1)
    other = tmp_path / "other.parquet"
    pd.DataFrame(TEST[:60]).to_parquet(other)
    for source in (data, other):
        assert training("promote", "by-hand", 2, "--data", source)[0] > 0
        assert champion(training, "by-hand") == "1"
    status, result = training("promote", "by-hand", 2, "--data", other, "--force")
    assert (status, result["forced"], champion(training, "by-hand")) == (0, True, "2")
    tags = {v["version"]: v for v in training("list")[1]["versions"] if v["name"] == "by-hand"}
    assert tags["2"]["promoted_by"] == "hand"
    assert "not the test prompts" in tags["2"]["verdict"]
    assert tags["1"]["promoted_by"] == "gate"


def test_a_versions_test_prompts_are_found_by_its_data_set(learnt, register, training, refused):
    trained, _ = learnt(900)
    register("found-again", 3, 0, **trained)
    training("promote", "found-again", 1)
    status, result = training("promote", "found-again", 2)
    assert (status, result["forced"], champion(training, "found-again")) == (0, False, "2")
    learnt(800)
    assert "not the test prompts" in refused("promote", "found-again", 1)


def test_a_damaged_champion_is_replaced_by_hand_only(register, training, refused, mlruns, data):
    first, _ = register("damaged", 0, 0)
    training("promote", "damaged", 1)
    (mlruns / "artifacts" / first / "artifacts" / "bundle" / MANIFEST).unlink()
    second = ("promote", "damaged", 2, "--data", data)
    assert "champion damaged version 1" in refused(*second)
    assert training(*second, "--force")[0] == 0
    assert champion(training, "damaged") == "2"
