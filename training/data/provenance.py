"""The prompts that a bundle was trained, chosen and tested on, found again by its manifest."""

import logging
from dataclasses import replace

from lengthwise.bundle import Manifest
from lengthwise.errors import DataError, LengthwiseError
from training.config import config_from
from training.data.labelled_splits import LabelledSplits, load_splits
from training.data.labels import TableOptions, read_prompts, without
from training.data.records import Dataset
from training.data.splits import digest_of_prompts

logger = logging.getLogger(__name__)


def training_data(manifest: Manifest, data_dir: str | None) -> LabelledSplits | None:
    """Return the bundle's own data set; None, with a warning, if it is not at hand."""
    try:
        return load_training_splits(manifest, None, data_dir)
    except LengthwiseError as error:
        logger.warning("training prompts are not left out: %s", error)
        return None


def unseen(prompts: Dataset, own: LabelledSplits | None) -> tuple[Dataset, int]:
    """Return the prompts not used to train, choose or calibrate, and the number of the others."""
    if own is None:
        return prompts, 0
    splits = [labelled.splits for labelled in (own, *own.heads)]
    kept = without(prompts, [part for s in splits for part in (s.train, s.val, s.calibration)])
    return kept, len(prompts) - len(kept)


def load_training_splits(
    manifest: Manifest, dataset: str | None, data_dir: str | None
) -> LabelledSplits:
    """Return the data that the bundle's run was trained on, checked by the run's splits."""
    config = config_from(manifest.training)
    if dataset is not None:
        config = replace(config, data=replace(config.data, dataset=dataset))
    advice = "give the data of the run with --dataset (a card or a table) or --data-dir"
    try:
        labelled = load_splits(config, data_dir)
    except DataError as error:
        raise DataError(f"the data of the run is not at hand ({error}); {advice}") from error
    found, parts = labelled.describe(), ("train_prompts", "val_prompts", "test_digest")
    if differ := [part for part in parts if found[part] != manifest.dataset.get(part)]:
        raise DataError(
            f"these are not the prompts that the run was trained on: of {found['id']} from "
            f"{found['origin']}, {', '.join(differ)} differ; {advice}"
        )
    if found["card_sha256"] != manifest.dataset.get("card_sha256"):
        text = "card %s has changed since the run: its prompts are the same, lengths may differ"
        logger.warning(text, found["id"])
    return labelled


def held_out_prompts(manifest: Manifest, data: str | None, data_dir: str | None) -> Dataset:
    """Return the prompts that the bundle was tested on, checked by their digest.

    `data` is the test.parquet of the run; None finds them in the bundle's data set.
    """
    if data is None:
        test = load_splits(config_from(manifest.training), data_dir).splits.test
    else:
        test = read_prompts(TableOptions(data=(data,)), manifest.label)
    if digest_of_prompts(test) != manifest.dataset.get("test_digest"):
        raise DataError(
            f"these are not the test prompts of run {manifest.mlflow_run_id}; give its "
            "test.parquet with --data, or the folder of its data set with --data-dir",
            path=data,
        )
    return test
