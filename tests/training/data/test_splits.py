"""Splits: disjoint, by the text alone, the same after every append."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoring_service.errors import ConfigError, DataError
from training.config import SplitConfig
from training.data.labels import LabelledPrompt
from training.data.records import PromptResponse, normalise
from training.data.splits import position, split_prompts


def record(prompt: str, tokens: int, sample: int = 0, **rest: int) -> PromptResponse:
    return PromptResponse(prompt=prompt, output_tokens=tokens, sample=sample, **rest)


def test_calibration_takes_what_is_neither_trained_nor_tested_on() -> None:
    prompts = prompts_of(600)
    whole = split_prompts(prompts, SplitConfig(val_fraction=0.1))
    assert whole.calibration == whole.val
    few = split_prompts(
        prompts, SplitConfig(val_fraction=0.1, train_prompts=100, val_prompts=10, test_prompts=20)
    )
    assert few.calibration == whole.val + whole.train[100:]


def prompts_of(count: int) -> list[LabelledPrompt]:
    return [LabelledPrompt(prompt=f"p {n}", model="", lengths=(n + 1,)) for n in range(count)]


@given(st.integers(200, 400), st.integers(0, 1000))
def test_splits_are_disjoint_and_cover_every_prompt(count: int, seed: int) -> None:
    splits = split_prompts(prompts_of(count), SplitConfig(seed=seed))
    parts = [[item.prompt for item in part] for part in (splits.train, splits.val, splits.test)]
    assert sorted(prompt for part in parts for prompt in part) == sorted(
        item.prompt for item in prompts_of(count)
    )


@given(st.text(min_size=1).filter(str.strip), st.integers(0, 9))
def test_a_prompt_falls_on_one_side_however_it_is_typed(prompt: str, seed: int) -> None:
    assert position(prompt, seed) == position(f"  {normalise(prompt)}\n", seed)


def test_a_limit_takes_a_subset_of_the_same_side() -> None:
    whole = split_prompts(prompts_of(400), SplitConfig())
    part = split_prompts(prompts_of(400), SplitConfig(train_prompts=50, test_prompts=10))
    assert part.train == whole.train[:50]
    assert part.test == whole.test[:10]
    assert part.test_digest != whole.test_digest


def test_appending_prompts_moves_none_to_another_side() -> None:
    before = split_prompts(prompts_of(300), SplitConfig())
    after = split_prompts(prompts_of(400), SplitConfig())
    assert {item.prompt for item in before.test} <= {item.prompt for item in after.test}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_distinct_prompts_are_refused(count: int) -> None:
    with pytest.raises(DataError, match=f"only {count} distinct prompts"):
        split_prompts(prompts_of(count), SplitConfig())


def test_a_fraction_outside_its_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"split.test_fraction is 0.7"):
        SplitConfig(test_fraction=0.7)
