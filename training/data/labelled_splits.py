"""Settings -> labelled and split prompts, and prompts without lengths for a student. No torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lengthwise.errors import ConfigError, DataError
from lengthwise.tables.files import is_file_name
from training.config import Label, TrainConfig, times_of
from training.data.cards import BUNDLED, LoadedData, load_data
from training.data.labels import distinct, label_prompts, observed, of_one_model, texts, without
from training.data.records import Dataset, num_responses, read_records
from training.data.splits import Splits, parts_of, positions, split_prompts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LabelledSplits:
    """A data set with labels and splits."""

    config: TrainConfig
    data: LoadedData
    splits: Splits
    num_merged: int
    """Records merged into an earlier record's prompt: repeated samples and duplicates."""
    heads: tuple[LabelledSplits, ...] = ()
    """Labelled splits of each further head: another length of the prompts, or another data set."""

    def describe(self) -> dict[str, Any]:
        """Return the data set's entry in a manifest."""
        card, splits = self.data.card, self.splits
        return {
            "id": card.id,
            "card_sha256": card.digest,
            "origin": self.data.origin,
            "train_prompts": len(splits.train),
            "val_prompts": len(splits.val),
            "test_prompts": len(splits.test),
            "test_digest": splits.test_digest,
            "merged_records": self.num_merged,
            "dropped_empty": self.data.num_empty,
        }


def load_splits(config: TrainConfig, data_dir: str | None) -> LabelledSplits:
    """Load the data set, label and split its prompts, and log the counts.

    Raises:
        DataError: the data breaks its card, or has no order to learn.
    """
    data = load_data(config.data.dataset, data_dir, config.data)
    named = map(times_of, config.data.also)
    also = [(load_data(name, data_dir, config.data), times) for name, times in named]
    if config.data.head_per_dataset:
        loaded = zip(config.data.orders, (data, *(other for other, _ in also)), strict=True)
        first, *heads = (_of_dataset(name, config, each) for name, each in loaded)
        if len({part.data.card.id for part in (first, *heads)}) <= len(heads):
            raise ConfigError(f"{config.data.orders} have one name twice; name each data set once")
    else:
        labels = (config.data.label, *config.data.heads)
        first, *heads = (_split_by(label, config, data, also) for label in labels)
    splits = first.splits
    logger.info(
        "data %s from %s: %d train, %d validation, %d test prompts; %d records merged into the "
        "prompt they repeat, %d empty responses dropped",
        *(data.card.id, data.origin, len(splits.train), len(splits.val), len(splits.test)),
        *(first.num_merged, data.num_empty),
    )
    return replace(first, heads=tuple(heads))


def _of_dataset(name: str, config: TrainConfig, data: LoadedData) -> LabelledSplits:
    """Return a data set with a head of its own, in the settings of a run that has it first."""
    if name != config.data.dataset:
        others = (other for other in config.data.also if times_of(other)[0] != name)
        also = (config.data.dataset, *others)
        config = replace(config, data=replace(config.data, dataset=name, also=also, model=None))
    return _split_by(config.data.label, config, data, ())


def _split_by(
    label: Label, config: TrainConfig, data: LoadedData, also: Sequence[tuple[LoadedData, int]]
) -> LabelledSplits:
    others = (name for name in (config.data.label, *config.data.heads) if name != label)
    config = replace(config, data=replace(config.data, label=label, heads=tuple(others)))
    from datasets import concatenate_datasets

    prompts = _labelled(data, config, config.data.model)
    num_merged = num_responses(data.records) - len(prompts)
    splits, train = split_prompts(prompts, config.split), []
    for other, times in also:
        more = _labelled(other, config, None)
        train += [parts_of(more, config.split)["train"]] * times
        num_merged += num_responses(other.records) - len(more)
    if train:
        splits = replace(splits, train=concatenate_datasets([splits.train, *train]))
    for name in ("train", "val", "test"):
        lengths = observed(getattr(splits, name))
        if np.ptp(lengths) == 0:
            raise DataError(
                f"every length of the {name} part is {lengths[0]:g}, so there is no order to "
                "learn and tau_b is undefined; give responses of different lengths"
            )
    return LabelledSplits(config=config, data=data, splits=splits, num_merged=num_merged)


def _labelled(data: LoadedData, config: TrainConfig, model: str | None) -> Dataset:
    # Without a source a prompt of several data sets is one prompt.
    source = "" if config.data.head_per_dataset else data.card.id
    return of_one_model(
        label_prompts(data.records, config.data.label, source),
        model=model,
        consensus=config.data.consensus,
        held_out=config.data.held_out_models,
    )


def unlabelled_prompts(config: TrainConfig, splits: Splits, data_dir: str | None) -> list[str]:
    """Return the distinct prompts of `data.unlabelled` that belong to no part of the splits.

    A prompt whose hash would put it into the validation or test part is left out, and so is one
    that the curves are calibrated on.
    """
    from datasets import concatenate_datasets

    found: list[Dataset] = []
    for name in config.data.unlabelled:
        if (prompts := _prompts_of(name, config, data_dir)) is None:
            continue
        prompts = distinct(prompts)
        kept = without(prompts, [splits.train, splits.calibration])
        places = positions(kept, config.split.seed)
        kept = kept.select(np.flatnonzero(places >= config.split.held_out))
        text = "%s: %d prompts without lengths; %d more are in the data set or held out"
        logger.info(text, name, len(kept), len(prompts) - len(kept))
        found.append(kept)
    if not found:
        return []
    prompts, most = distinct(concatenate_datasets(found)), config.data.max_unlabelled
    if most is not None and most < len(prompts):
        prompts = prompts.select(np.argsort(positions(prompts, config.split.seed))[:most])
        logger.info("the first %d of them by hash are learnt", most)
    return texts(prompts)


def _prompts_of(name: str, config: TrainConfig, data_dir: str | None) -> Dataset | None:
    if is_file_name(name) and not name.endswith(".yaml"):
        return read_records(name, config.data, label=None)[0]
    try:
        data = load_data(name, data_dir)
    except DataError as error:
        logger.warning("unlabelled prompts of %s are left out: %s", name, error)
        return None
    return None if data.card.id == BUNDLED != name else data.records
