"""Labelled splits: further sets only in training, labels side by side, counts that add up."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lengthwise.errors import ConfigError, DataError
from tests.training.drawn import generate
from tests.training.prompts import labels
from training.config import DataConfig, SplitConfig, TrainConfig
from training.data.labelled_splits import load_splits, unlabelled_prompts
from training.data.labels import texts
from training.data.splits import position, split_prompts


def write_matrix(path: Path, num_prompts: int = 80) -> Path:
    rng = np.random.default_rng(0)
    common = rng.normal(4, 1, num_prompts)
    rows = [
        {"prompt": f"prompt {n}", "model": f"m{m}", "output_tokens": int(np.exp(value)) + 1}
        for m in range(4)
        for n, value in enumerate(common + rng.normal(m / 5, 0.3, num_prompts))
    ]
    pd.DataFrame(rows).to_parquet(path)
    return path


def test_further_sets_are_learnt_from_and_never_tested_on(make_card, tmp_path):
    card = make_card(
        table=write_matrix(tmp_path / "many.parquet", 200),
        rows=800,
        fields={"prompt": "prompt", "output_tokens": "output_tokens", "model": "model"},
    )
    data = DataConfig(dataset=str(card), also=(f"{card}*3",), consensus=True)
    config = TrainConfig(data=data, split=SplitConfig(test_fraction=0.2))
    labelled = load_splits(config, None)
    alone = load_splits(replace(config, data=replace(data, also=())), None)
    assert labelled.splits.test.to_list() == alone.splits.test.to_list()
    assert len(labelled.splits.train) == 4 * len(alone.splits.train)
    assert not set(texts(labelled.splits.test)) & set(texts(labelled.splits.train))


def test_records_are_counted_as_merged_or_dropped(make_card: Callable[..., Path]) -> None:
    records = generate(300, seed=3)[0]
    repeats = [replace(record, output_tokens=record.output_tokens + 1) for record in records[:40]]
    empty = [replace(record, output_tokens=0) for record in records[:7]]
    card = str(make_card([*records, *repeats, *empty]))
    data = DataConfig(dataset=card)
    labelled = load_splits(TrainConfig(data=data), None)
    assert (labelled.num_merged, labelled.data.num_empty) == (40, 7)
    assert load_splits(TrainConfig(data=replace(data, also=(card,))), None).num_merged == 80
    described = labelled.describe()
    assert (described["merged_records"], described["dropped_empty"]) == (40, 7)
    parts = ("train_prompts", "val_prompts", "test_prompts")
    assert sum(described[part] for part in parts) == 300


@pytest.mark.parametrize(("lengths", "refused"), [((7, 7), True), ((7, 8), False)])
def test_equal_lengths_have_no_order_to_learn(make_card, lengths, refused):
    records = [
        replace(record, output_tokens=lengths[number % 2])
        for number, record in enumerate(generate(300, seed=3)[0])
    ]
    config = TrainConfig(data=DataConfig(dataset=str(make_card(records))))
    if refused:
        with pytest.raises(DataError, match="every length of the train part is 7"):
            load_splits(config, None)
    else:
        assert len(load_splits(config, None).splits.train) > 0


@pytest.mark.parametrize("times", ["0", "", "-1", "x"])
def test_a_further_set_is_taken_once_or_more(make_card: Callable[..., Path], times: str) -> None:
    card = str(make_card(generate(100, seed=3)[0]))
    data = DataConfig(dataset=card, also=(f"{card}*{times}",))
    with pytest.raises(ConfigError, match="use NAME or NAME\\*COUNT"):
        load_splits(TrainConfig(data=data), None)


def test_each_data_set_with_a_head_has_its_own_splits(make_card, tmp_path):
    card, log = str(make_card(generate(300, seed=3)[0])), str(tmp_path / "other.jsonl")
    pd.DataFrame(generate(200, seed=4)[0]).to_json(log, orient="records", lines=True)
    data = DataConfig(dataset=log, also=(f"{card}*3",), head_per_dataset=True)
    labelled = load_splits(TrainConfig(data=data), None)
    for part, name in zip((labelled, *labelled.heads), (log, card), strict=True):
        alone = load_splits(TrainConfig(data=DataConfig(dataset=name)), None)
        assert part.splits.test_digest == alone.splits.test_digest
        again = load_splits(part.config, None)
        assert (again.describe(), again.config.data.orders[0]) == (part.describe(), name)
    with pytest.raises(ConfigError, match="name each data set once"):
        load_splits(TrainConfig(data=replace(data, also=(log,))), None)


def test_each_head_has_the_prompts_with_its_own_label(tmp_path: Path) -> None:
    rows = [
        {"prompt": r.prompt, "output_tokens": r.output_tokens + 9, "reasoning_tokens": n % 9}
        for n, r in enumerate(generate(300, seed=3)[0])
    ]
    path = tmp_path / "logs.parquet"
    pd.DataFrame(rows).to_parquet(path)
    data = DataConfig(dataset=str(path), heads=("reasoning_tokens",))
    labelled = load_splits(TrainConfig(data=data), None)
    (head,) = labelled.heads
    assert (head.config.data.label, head.config.data.heads) == (
        "reasoning_tokens",
        ("output_tokens",),
    )
    assert set(texts(head.splits.test)) < set(texts(labelled.splits.test))


OLD, NEW = (generate(count, seed=seed)[0] for count, seed in ((400, 0), (300, 1)))


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [record.prompt for record in (*NEW, *OLD)] + [f" {NEW[0].prompt.upper()}\n"]
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in rows))
    return path


def test_prompts_of_any_part_or_falling_into_one_are_left_out(prompts, caplog):
    caplog.set_level("INFO")
    config = TrainConfig(
        data=DataConfig(unlabelled=(str(prompts), str(prompts))),
        split=SplitConfig(train_prompts=100),
    )
    splits = split_prompts(labels(OLD), config.split)
    found = unlabelled_prompts(config, splits, None)
    assert len(set(found)) == len(found) > 150
    for used in (splits.train, splits.val, splits.test, splits.calibration):
        assert not set(found) & set(texts(used))
    assert min(position(prompt, 0) for prompt in found) >= 0.2
    assert f"{len(found)} prompts without lengths; " in caplog.text
    some = replace(config, data=replace(config.data, max_unlabelled=40))
    first = unlabelled_prompts(some, splits, None)
    assert first == sorted(found, key=lambda prompt: position(prompt, 0))[:40]
    other = replace(config, split=replace(config.split, seed=1))
    assert set(unlabelled_prompts(other, splits, None)) != set(found)


def test_absent_sets_are_a_warning_and_absent_files_an_error(tmp_path, caplog, monkeypatch):
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    config = TrainConfig(data=DataConfig(unlabelled=("alpaca-davinci003",)))
    splits = split_prompts(labels(OLD), config.split)
    assert unlabelled_prompts(config, splits, None) == []
    assert "data set 'alpaca-davinci003' was not found" in caplog.text
    assert unlabelled_prompts(config, splits, str(tmp_path)) == []
    assert "unlabelled prompts of alpaca-davinci003 are left out" in caplog.text
    absent = replace(config, data=DataConfig(unlabelled=(str(tmp_path / "none.jsonl"),)))
    with pytest.raises(DataError, match=r"none\.jsonl"):
        unlabelled_prompts(absent, splits, None)
