"""The alias moves only to a model that is provably better on prompts neither has seen."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lengthwise.agreement import tau_b
from lengthwise.bundle import Manifest, ModelBundle
from tests.training.prompts import labelled
from training.release import champion
from training.release.champion import judge

LENGTHS = np.arange(1.0, 201.0)
TEST = labelled({str(n): (int(n),) for n in LENGTHS})
SPLIT = {"split": {"seed": 0, "val_fraction": 0.05, "test_fraction": 0.15}}


def bundle(noise: float, **metrics: object) -> ModelBundle:
    """A bundle whose scores are the lengths and noise of this width; nothing is on disk."""
    manifest = Manifest(
        name=str(noise),
        label="output_tokens",
        label_tokenizer="none",
        max_prompt_tokens=8,
        training=SPLIT,
        metrics=metrics,
    )
    return ModelBundle(Path("nowhere"), manifest)


@pytest.fixture(autouse=True)
def _scores_without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def score(bundle: ModelBundle, prompts: list[str]) -> np.ndarray:
        noise = float(bundle.manifest.name)
        return LENGTHS + np.random.default_rng(int(noise)).normal(0, noise, len(LENGTHS))

    monkeypatch.setattr(champion, "score_prompts", score)


def test_the_first_model_becomes_champion_where_it_beats_chance() -> None:
    assert judge(bundle(10, tau_b=0.3, tau_b_ci=[0.1, 0.5]), None, TEST).promoted


@pytest.mark.parametrize(
    ("tau_b", "interval", "reason"),
    [
        (-0.151, [-0.331, 0.035], "not proven"),
        (0.1, [0.0, 0.2], "not proven"),
        (None, [None, None], "not known"),
        (None, None, "not known"),
    ],
)
def test_a_ranker_no_better_than_chance_does_not_serve(
    tau_b: object, interval: object, reason: str
) -> None:
    verdict = judge(bundle(10, tau_b=tau_b, tau_b_ci=interval), None, TEST)
    assert not verdict.promoted
    assert reason in verdict.reason


def test_a_better_model_takes_over_and_a_worse_one_does_not() -> None:
    better = judge(bundle(10), bundle(90), TEST)
    worse = judge(bundle(90), bundle(10), TEST)
    assert better.promoted
    assert better.difference_ci is not None
    assert better.difference_ci[0] > 0
    assert not worse.promoted
    assert "does not beat" in worse.reason
    assert not judge(bundle(10), bundle(10), TEST).promoted


@pytest.mark.parametrize(
    "changes",
    [
        {"training": {"split": {"seed": 1, "val_fraction": 0.05, "test_fraction": 0.15}}},
        {"label": "reasoning_tokens"},
    ],
)
def test_a_champion_of_other_splits_or_lengths_is_not_compared(changes: dict[str, Any]) -> None:
    other = bundle(90)
    other = replace(other, manifest=replace(other.manifest, **changes))
    verdict = judge(bundle(10), other, TEST)
    assert not verdict.promoted
    assert "not comparable" in verdict.reason


def test_an_undefined_tau_b_is_not_compared() -> None:
    verdict = judge(bundle(10), bundle(90), labelled({str(n): (7,) for n in LENGTHS}))
    assert not verdict.promoted
    assert "one tau_b is undefined" in verdict.reason


def test_a_gain_that_may_be_chance_does_not_serve() -> None:
    verdict = judge(bundle(60), bundle(61), TEST)
    assert verdict.difference_ci is not None
    low, high = verdict.difference_ci
    assert low < 0 < high
    assert not verdict.promoted
    assert f"95% interval {low:+.4f} to {high:+.4f}" in verdict.reason


def test_the_gain_is_the_difference_of_both() -> None:
    challenger, other = bundle(10), bundle(90)
    taus = [tau_b(champion.score_prompts(each, []), LENGTHS) for each in (challenger, other)]
    assert f"tau_b {taus[0] - taus[1]:+.4f}," in judge(challenger, other, TEST).reason
