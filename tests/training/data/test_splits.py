"""Splits: by the text and the seed alone, so disjoint and the same after every append."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lengthwise.errors import DataError
from lengthwise.tables.prompt_text import normalised
from tests.training.prompts import PromptResponse, labels, numbered
from training.config import SplitConfig
from training.data.labels import texts
from training.data.splits import (
    MAX_CALIBRATION,
    digest_of_prompts,
    parts_of,
    position,
    split_prompts,
)


def test_calibration_takes_what_is_neither_trained_nor_tested_on() -> None:
    prompts = numbered(600)
    whole = split_prompts(prompts, SplitConfig(val_fraction=0.1))
    assert texts(whole.calibration) == texts(whole.val)
    few = split_prompts(
        prompts, SplitConfig(val_fraction=0.1, train_prompts=100, val_prompts=10, test_prompts=20)
    )
    assert texts(few.calibration) == texts(whole.val) + texts(whole.train)[100:]
    assert texts(few.train) == texts(whole.train)[:100]
    assert texts(few.test) == texts(whole.test)[:20]
    config = SplitConfig(test_fraction=0.01, val_fraction=0.1, train_prompts=2)
    splits = split_prompts(numbered(4000), config)
    assert len(splits.calibration) == MAX_CALIBRATION == 3000
    assert texts(splits.calibration)[: len(splits.val)] == texts(splits.val)


@settings(max_examples=30)
@given(st.text(min_size=1).filter(str.strip), st.integers(0, 9))
def test_a_prompt_falls_on_one_side_however_it_is_typed(prompt: str, seed: int) -> None:
    assert position(prompt, seed) == position(f"  {normalised(prompt)}\n", seed)


def test_a_prompts_place_is_the_same_in_every_version() -> None:
    assert position("Name three bees", 0) == 0.8590205199997243
    assert position("Name three bees", 1) == 0.6655692302531548
    places = [position(f"p {n}", 0) for n in range(2000)]
    assert np.quantile(places, [0, 0.25, 0.5, 0.75, 1]) == pytest.approx(
        [0, 0.25, 0.5, 0.75, 1], abs=0.05
    )


def test_a_part_begins_where_the_one_before_it_ends() -> None:
    prompts = numbered(400)
    places = {prompt: position(prompt, 0) for prompt in texts(prompts)}
    low, high = sorted(place for place in places.values() if 0.1 < place < 0.4)[10:100:80]
    config = SplitConfig(test_fraction=low, val_fraction=high - low)
    splits, border = split_prompts(prompts, config), low + (high - low)
    assert set(texts(splits.test)) == {name for name, at in places.items() if at < low}
    assert set(texts(splits.val)) == {n for n, at in places.items() if low <= at < border}
    assert set(texts(splits.train)) == {name for name, at in places.items() if at >= border}
    assert sum(map(len, (splits.train, splits.val, splits.test))) == len(prompts)


def test_a_group_is_in_one_part() -> None:
    about = [{"prompt": f"p{n}", "output_tokens": 9, "group": f"{n % 40}"} for n in range(400)]
    prompts = labels(PromptResponse(**each) for each in about)
    parts = parts_of(prompts, SplitConfig(by_group=True, test_fraction=0.3))
    groups = [set(part["group"]) for part in parts.values()]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 40


def test_two_prompts_in_each_part_are_enough_and_one_is_not() -> None:
    config = SplitConfig(test_fraction=0.3, val_fraction=0.3)
    prompts, places = numbered(300), np.array([position(f"bees {n}", 0) for n in range(300)])
    parts = {
        "test": np.flatnonzero(places < 0.3),
        "val": np.flatnonzero((places >= 0.3) & (places < 0.6)),
        "train": np.flatnonzero(places >= 0.6),
    }
    few = [int(n) for part in parts.values() for n in part[:2]]
    assert len(split_prompts(prompts.select(few), config).train) == 2
    for name, part in parts.items():
        with pytest.raises(DataError, match=f"only 5 distinct .* 1 of them in the {name} part"):
            split_prompts(prompts.select([n for n in few if n != part[0]]), config)
    alone: Any = prompts.select(parts["train"][:1])
    assert texts(parts_of(alone, config)["train"]) == texts(alone)


def test_the_digest_says_which_prompts_are_tested_in_which_order() -> None:
    prompts = numbered(3)
    some = ([0, 1], [2, 1], [0, 2], [1, 0], [0], [])
    assert len({digest_of_prompts(prompts.select(rows)) for rows in some}) == 6
