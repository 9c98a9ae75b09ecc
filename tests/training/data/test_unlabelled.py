"""Unlabelled prompts are new ones, and never those that a run chooses by or is tested on."""

import json
from dataclasses import replace

import pytest

from lengthwise.errors import DataError
from training.config import DataConfig, SplitConfig, TrainConfig
from training.data.labels import label_prompts
from training.data.splits import position, split_prompts
from training.data.synthetic import generate
from training.data.unlabelled import unlabelled_prompts

OLD, NEW = (generate(count, seed=seed)[0] for count, seed in ((400, 0), (300, 1)))


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [record.prompt for record in (*NEW, *OLD)] + [f" {NEW[0].prompt.upper()}\n"]
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in rows))
    return path


def test_prompts_of_every_part_and_those_that_would_fall_into_one_are_left_out(table, caplog):
    caplog.set_level("INFO")
    config = TrainConfig(
        data=DataConfig(unlabelled=(str(table), str(table))), split=SplitConfig(train_prompts=100)
    )
    splits = split_prompts(label_prompts(OLD), config.split)
    found = unlabelled_prompts(config, splits, None)
    assert len(set(found)) == len(found) > 150
    used = (*splits.train, *splits.val, *splits.test, *splits.calibration)
    assert not set(found) & {item.prompt for item in used}
    assert min(position(prompt, 0) for prompt in found) >= 0.2
    assert f"{len(found)} prompts without lengths; " in caplog.text
    other = replace(config, split=replace(config.split, seed=1))
    assert set(unlabelled_prompts(other, splits, None)) != set(found)


def test_a_set_that_is_not_at_hand_is_left_out_with_a_warning_and_an_absent_file_is_an_error(
    tmp_path, caplog, monkeypatch
):
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    config = TrainConfig(data=DataConfig(unlabelled=("alpaca-davinci003",)))
    splits = split_prompts(label_prompts(OLD), config.split)
    assert unlabelled_prompts(config, splits, None) == []
    assert "data set 'alpaca-davinci003' was not found" in caplog.text
    assert unlabelled_prompts(config, splits, str(tmp_path)) == []
    assert "unlabelled prompts of alpaca-davinci003 are left out" in caplog.text
    absent = replace(config, data=DataConfig(unlabelled=(str(tmp_path / "none.jsonl"),)))
    with pytest.raises(DataError, match=r"none\.jsonl"):
        unlabelled_prompts(absent, splits, None)
