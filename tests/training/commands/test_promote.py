"""`promote`: only what is provably better serves, or what a hand chose."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from lengthwise.bundle import MANIFEST, ModelBundle
from tests.training.commands.conftest import TEST, champion, draw_prompts

Training = Callable[..., tuple[int, Any]]


def test_a_version_is_promoted_only_where_it_is_provably_better(
    make_bundle: Callable[..., ModelBundle],
    register: Callable[[str, ModelBundle], str],
    training: Training,
    data: Path,
) -> None:
    for noise in (3, 0, 0):
        register("gated", make_bundle(noise))
    status, result = training("promote", "gated", 1, "--data", data)
    assert (status, result["champion"], result["forced"]) == (0, True, False)
    status, result = training("promote", "gated", 2, "--data", data)
    assert (status, champion(training, "gated")) == (0, "2")
    assert result["difference_ci"][0] > 0
    status, result = training("promote", "gated", 3, "--data", data)
    assert (status, result["champion"], champion(training, "gated")) == (1, False, "2")
    assert "does not beat" in result["verdict"]
    assert training("promote", "gated", 2)[1]["champion"] is True


def test_a_promotion_by_hand_needs_no_proof_and_is_recorded(
    make_bundle: Callable[..., ModelBundle],
    register: Callable[[str, ModelBundle], str],
    training: Training,
    data: Path,
    tmp_path: Path,
) -> None:
    for noise in (0, 3):
        register("by-hand", make_bundle(noise))
    training("promote", "by-hand", 1)
    other = tmp_path / "other.parquet"
    pd.DataFrame(TEST[:60]).to_parquet(other)
    for source in (data, other):
        assert training("promote", "by-hand", 2, "--data", source)[0] > 0
        assert champion(training, "by-hand") == "1"
    status, result = training("promote", "by-hand", 2, "--data", other, "--force")
    assert (status, result["forced"], champion(training, "by-hand")) == (0, True, "2")
    versions = training("list")[1]["versions"]
    tags = {v["version"]: v for v in versions if v["name"] == "by-hand"}
    assert tags["2"]["promoted_by"] == "hand"
    assert "not the test prompts" in tags["2"]["verdict"]
    assert tags["1"]["promoted_by"] == "gate"


def test_the_test_prompts_of_a_version_are_found_again_from_its_data_set(
    make_bundle: Callable[..., ModelBundle],
    make_card: Callable[..., Path],
    register: Callable[[str, ModelBundle], str],
    training: Training,
) -> None:
    from training.config import DataConfig, TrainConfig
    from training.data.labelled_splits import load_splits

    config = TrainConfig(data=DataConfig(dataset=str(make_card(draw_prompts(900, noise=0.5)))))
    trained = {
        "training": asdict(config),
        "dataset": {"id": "logs", "test_digest": load_splits(config, None).splits.test_digest},
    }
    for noise in (3, 0):
        register("found-again", make_bundle(noise, **trained))
    training("promote", "found-again", 1)
    status, result = training("promote", "found-again", 2)
    assert (status, result["forced"], champion(training, "found-again")) == (0, False, "2")
    make_card(draw_prompts(800, noise=0.5))
    status, line = training("promote", "found-again", 1)
    assert status == 2
    assert "not the test prompts" in line


def test_a_champion_whose_bundle_is_damaged_is_replaced_by_hand_only(
    make_bundle: Callable[..., ModelBundle],
    register: Callable[[str, ModelBundle], str],
    training: Training,
    mlruns: Path,
    data: Path,
) -> None:
    first = register("damaged", make_bundle(0))
    register("damaged", make_bundle(0))
    training("promote", "damaged", 1)
    (mlruns / "artifacts" / first / "artifacts" / "bundle" / MANIFEST).unlink()
    status, line = training("promote", "damaged", 2, "--data", data)
    assert status == 2
    assert "champion damaged version 1" in line
    assert training("promote", "damaged", 2, "--data", data, "--force")[0] == 0
    assert champion(training, "damaged") == "2"
