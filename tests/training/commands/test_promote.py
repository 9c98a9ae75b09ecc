"""`promote`: only what is provably better on unseen prompts serves, or what a hand chose."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lengthwise.agreement import tau_b
from lengthwise.bundle import MANIFEST, Manifest, ModelBundle
from tests.training.commands.conftest import SPLIT, TEST, champion
from tests.training.prompts import labelled
from training.commands import promote


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
    tags = {number: training.store.version("by-hand", number).tags for number in ("1", "2")}
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


LENGTHS = np.arange(1.0, 201.0)
Judged = Callable[..., promote.Promotion]


def bundle(noise: float, **changes: Any) -> ModelBundle:
    """A bundle whose scores are the lengths and noise of this width; nothing is on disk."""
    about = {"label": "output_tokens", "label_tokenizer": "none", "max_prompt_tokens": 8}
    manifest = Manifest(**{**about, "name": str(noise), "training": {"split": SPLIT}, **changes})
    return ModelBundle(Path("nowhere"), manifest)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Judged:
    """The verdict on a challenger beside a champion, on prompts of these lengths."""

    def score(bundle: ModelBundle, prompts: list[str]) -> np.ndarray:
        noise = float(bundle.manifest.name)
        return LENGTHS + np.random.default_rng(int(noise)).normal(0, noise, len(LENGTHS))

    monkeypatch.setattr(promote, "score_prompts", score)
    return lambda challenger, other, lengths=LENGTHS: promote.judge(
        challenger, other, labelled({str(n): (int(length),) for n, length in enumerate(lengths)})
    )


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ({"tau_b": 0.3, "tau_b_ci": [0.1, 0.5]}, "the first champion"),
        ({"tau_b": -0.151, "tau_b_ci": [-0.331, 0.035]}, "not proven"),
        ({"tau_b": 0.1, "tau_b_ci": [0.0, 0.2]}, "not proven"),
        ({"tau_b": None, "tau_b_ci": [None, None]}, "not known"),
        ({}, "not known"),
    ],
)
def test_a_first_champion_is_proven_better_than_chance(figures, reason, judged):
    verdict = judged(bundle(10, metrics=figures), None)
    assert reason in verdict.reason
    assert verdict.promoted == (reason == "the first champion")


def test_only_a_proven_gain_takes_over(judged: Judged) -> None:
    better, worse = judged(bundle(10), bundle(90)), judged(bundle(90), bundle(10))
    assert (better.promoted, worse.promoted) == (True, False)
    taus = [tau_b(promote.score_prompts(bundle(n), []), LENGTHS) for n in (10, 90)]
    assert f"tau_b {taus[0] - taus[1]:+.4f}," in better.reason
    assert "does not beat" in worse.reason
    assert not judged(bundle(10), bundle(10)).promoted
    by_chance = judged(bundle(60), bundle(61))
    low, high = by_chance.difference_ci or (0, 0)
    assert low < 0 < high
    assert not by_chance.promoted
    assert f"95% interval {low:+.4f} to {high:+.4f}" in by_chance.reason


def test_what_does_not_compare_does_not_take_over(judged: Judged) -> None:
    others = bundle(90, training={"split": SPLIT | {"seed": 1}}), bundle(90, label="answer_tokens")
    verdicts = [judged(bundle(10), other) for other in others]
    verdicts.append(judged(bundle(10), bundle(90), np.full(200, 7)))
    for verdict, reason in zip(verdicts, ("seed", "answer_tokens", "undefined"), strict=True):
        assert not verdict.promoted
        assert verdict.reason.startswith("not comparable: ")
        assert reason in verdict.reason
