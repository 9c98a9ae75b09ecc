"""A bundle's prompts are found again, or refused where they are not the same."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from datasets import concatenate_datasets

from lengthwise.bundle import Manifest
from lengthwise.errors import DataError
from tests.training.drawn import generate
from training.config import DataConfig, SplitConfig, TrainConfig
from training.data.labelled_splits import LabelledSplits, load_splits
from training.data.provenance import held_out_prompts, load_training_splits, training_data, unseen

RECORDS, _ = generate(300, seed=2)


@pytest.fixture
def trained(make_card: Callable[..., Path]) -> tuple[LabelledSplits, Manifest]:
    """Labelled splits of a run, and the manifest of its bundle."""
    data = DataConfig(dataset=str(make_card(RECORDS)))
    config = TrainConfig(data=data, split=SplitConfig(train_prompts=100))
    labelled = load_splits(config, None)
    manifest = Manifest(
        name="m",
        label="output_tokens",
        label_tokenizer="none",
        max_prompt_tokens=8,
        training=asdict(config),
        dataset=labelled.describe(),
    )
    return labelled, manifest


def parts_of(labelled: LabelledSplits) -> dict[str, list[Any]]:
    names = ("train", "val", "test", "calibration")
    return {name: getattr(labelled.splits, name).to_list() for name in names}


def test_the_prompts_of_a_bundle_are_found_again(trained, tmp_path):
    labelled, manifest = trained
    found = training_data(manifest, None)
    assert found is not None
    assert parts_of(found) == parts_of(labelled)
    assert parts_of(load_training_splits(manifest, None, None)) == parts_of(labelled)
    assert held_out_prompts(manifest, None, None).to_list() == parts_of(labelled)["test"]
    table = tmp_path / "test.parquet"
    rows = [{"prompt": p["prompt"], "output_tokens": p["lengths"][0]} for p in labelled.splits.test]
    pd.DataFrame(rows).to_parquet(table)
    assert len(held_out_prompts(manifest, str(table), None)) == len(labelled.splits.test)
    pd.DataFrame(rows[1:]).to_parquet(table)
    with pytest.raises(DataError, match="not the test prompts"):
        held_out_prompts(manifest, str(table), None)


def test_only_prompts_that_nothing_was_learnt_from_are_unseen(trained):
    labelled, _ = trained
    splits = labelled.splits
    every = [splits.test, splits.train, splits.val, splits.calibration]
    everyone = concatenate_datasets(every)
    kept, num_seen = unseen(everyone, labelled)
    assert kept.to_list() == splits.test.to_list()
    assert num_seen == len(everyone) - len(splits.test)
    assert len(splits.calibration) > len(splits.val)  # A limit leaves prompts to calibrate on.
    assert unseen(everyone, None) == (everyone, 0)


def test_other_data_is_not_taken_for_the_bundles_own(trained, make_card, caplog):
    labelled, manifest = trained
    make_card(RECORDS, notes="another card of the same table")
    found = training_data(manifest, None)
    assert found is not None
    again = load_training_splits(manifest, None, None)
    assert parts_of(found) == parts_of(again) == parts_of(labelled)
    assert "card logs has changed since the run" in caplog.text
    make_card(RECORDS[:-20])
    with pytest.raises(DataError, match=r"of logs from .*, train_prompts|test_digest differ"):
        load_training_splits(manifest, None, None)
    missing = replace(manifest, training=asdict(TrainConfig(data=DataConfig(dataset="no/such"))))
    assert training_data(missing, None) is None
    with pytest.raises(DataError, match="data of the run is not at hand"):
        load_training_splits(missing, None, None)
