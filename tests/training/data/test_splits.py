"""Splits: disjoint, by the text alone, the same after every append."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from lengthwise.errors import DataError
from lengthwise.tables.prompt_text import normalised
from training.config import SplitConfig
from training.data.labels import LabelledPrompt
from training.data.splits import MAX_CALIBRATION, Splits, parts_of, position, split_prompts


def test_calibration_takes_what_is_neither_trained_nor_tested_on() -> None:
    prompts = prompts_of(600)
    whole = split_prompts(prompts, SplitConfig(val_fraction=0.1))
    assert whole.calibration == whole.val
    few = split_prompts(
        prompts, SplitConfig(val_fraction=0.1, train_prompts=100, val_prompts=10, test_prompts=20)
    )
    assert few.calibration == whole.val + whole.train[100:]
    assert (few.train, few.test) == (whole.train[:100], whole.test[:20])


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
    assert position(prompt, seed) == position(f"  {normalised(prompt)}\n", seed)


def test_appending_prompts_moves_none_to_another_side() -> None:
    before = split_prompts(prompts_of(300), SplitConfig())
    after = split_prompts(prompts_of(400), SplitConfig())
    assert {item.prompt for item in before.test} <= {item.prompt for item in after.test}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_distinct_prompts_are_refused(count: int) -> None:
    with pytest.raises(DataError, match=f"only {count} distinct prompts"):
        split_prompts(prompts_of(count), SplitConfig())


def test_a_prompts_place_is_the_same_in_every_version() -> None:
    assert position("Name three bees", 0) == 0.8590205199997243
    assert position("Name three bees", 1) == 0.6655692302531548
    places = [position(f"p {n}", 0) for n in range(2000)]
    assert np.quantile(places, [0, 0.25, 0.5, 0.75, 1]) == pytest.approx(
        [0, 0.25, 0.5, 0.75, 1], abs=0.05
    )


def test_a_part_begins_where_the_one_before_it_ends() -> None:
    places = {item.prompt: position(item.prompt, 0) for item in prompts_of(400)}
    low, high = sorted(place for place in places.values() if 0.1 < place < 0.4)[10:100:80]
    config = SplitConfig(test_fraction=low, val_fraction=high - low)
    splits = split_prompts(prompts_of(400), config)
    border = low + (high - low)
    assert {p.prompt for p in splits.test} == {name for name, at in places.items() if at < low}
    assert {p.prompt for p in splits.val} == {n for n, at in places.items() if low <= at < border}
    assert splits.train == parts_of(prompts_of(400), config)["train"]


def test_two_prompts_in_each_part_are_enough_and_one_is_not() -> None:
    config = SplitConfig(test_fraction=0.3, val_fraction=0.3)
    prompts = prompts_of(300)
    parts = {
        "test": [p for p in prompts if position(p.prompt, 0) < 0.3],
        "val": [p for p in prompts if 0.3 <= position(p.prompt, 0) < 0.6],
        "train": [p for p in prompts if position(p.prompt, 0) >= 0.6],
    }
    few = [item for part in parts.values() for item in part[:2]]
    assert len(split_prompts(few, config).train) == 2
    for name, part in parts.items():
        with pytest.raises(DataError, match=f"1 of them in the {name} part"):
            split_prompts([p for p in few if p != part[0]], config)
    assert parts_of(parts["train"][:1], config)["train"] == parts["train"][:1]


def test_the_digest_says_which_prompts_are_tested_on_and_in_which_order() -> None:
    a, b, c = prompts_of(3)
    digests = {
        Splits(train=[], val=[], test=test).test_digest
        for test in ([a, b], [c, b], [a, c], [b, a], [a], [])
    }
    assert len(digests) == 6
    assert Splits(train=[c], val=[c], test=[a, b]).test_digest in digests


def test_calibration_is_limited_and_begins_with_the_validation_part() -> None:
    config = SplitConfig(test_fraction=0.01, val_fraction=0.1, train_prompts=2)
    splits = split_prompts(prompts_of(4000), config)
    assert len(splits.calibration) == MAX_CALIBRATION == 3000
    assert splits.calibration[: len(splits.val)] == splits.val
