"""Settings -> labelled and split prompts. No torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lengthwise.bundle import BANNER, SYNTHETIC
from lengthwise.errors import ConfigError, DataError
from training.config import Label, TrainConfig
from training.data.cards import LoadedData, load_data
from training.data.labels import LabelledPrompt, label_prompts, of_one_model
from training.data.splits import Splits, split_prompts, training_part

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A data set that is labelled and split."""

    config: TrainConfig
    data: LoadedData
    splits: Splits
    num_merged: int
    """Records merged into an earlier record's prompt: repeated samples and duplicates."""
    heads: tuple[Prepared, ...] = ()
    """The same prompts with the labels of `data.heads`; a head has no heads itself."""
    is_further: bool = False
    """True for an element of `heads`."""

    @property
    def banner(self) -> str | None:
        """The warning that belongs to every figure on invented data."""
        return BANNER if self.data.card.id == SYNTHETIC else None

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
            "attainable_tau_b": self.data.attainable_tau_b,
        }


def prepare(config: TrainConfig, data_dir: str | None) -> Prepared:
    """Load the data set, label and split its prompts, and log the counts.

    Raises:
        DataError: the data breaks its card, or has no order to learn.
    """
    data = load_data(config.data.dataset, data_dir, config.data)
    named = map(_times, config.data.also)
    also = [(load_data(name, data_dir, config.data), times) for name, times in named]
    first, *heads = (
        _prepare_label(_labelled_by(config, label), data, also)
        for label in (config.data.label, *config.data.heads)
    )
    splits = first.splits
    counts = len(splits.train), len(splits.val), len(splits.test), first.num_merged
    logger.info(
        "data %s from %s: %d train, %d validation, %d test prompts; %d records merged into the "
        "prompt they repeat, %d empty responses dropped",
        *(data.card.id, data.origin, *counts, data.num_empty),
    )
    for part in ("train", "test"):
        asked, there = getattr(config.split, f"{part}_prompts"), len(getattr(splits, part))
        if asked is not None and there < asked:
            logger.warning(
                "recipe %s asks for %d %s prompts, and the data at hand has %d: its figures are "
                "those of fewer prompts",
                *(config.name, asked, part, there),
            )
    return replace(first, heads=tuple(replace(head, is_further=True) for head in heads))


def _labelled_by(config: TrainConfig, label: Label) -> TrainConfig:
    """Return the configuration with `label` as the first of its lengths."""
    others = (name for name in (config.data.label, *config.data.heads) if name != label)
    return replace(config, data=replace(config.data, label=label, heads=tuple(others)))


def _prepare_label(
    config: TrainConfig, data: LoadedData, also: Sequence[tuple[LoadedData, int]]
) -> Prepared:
    prompts, num_merged = _labelled(data, config, config.data.model)
    splits = split_prompts(prompts, config.split)
    for other, times in also:
        more, merged = _labelled(other, config, None)
        part = training_part(more, config.split)
        splits = replace(splits, train=splits.train + part * times)
        num_merged += merged
    for name in ("train", "val", "test"):
        lengths = [item.observed for item in getattr(splits, name)]
        if np.ptp(lengths) == 0:
            raise DataError(
                f"every length of the {name} part is {lengths[0]}, so there is no order to "
                "learn and tau_b is undefined; give responses of different lengths"
            )
    return Prepared(config=config, data=data, splits=splits, num_merged=num_merged)


def _labelled(
    data: LoadedData, config: TrainConfig, model: str | None
) -> tuple[list[LabelledPrompt], int]:
    """Return the labelled prompts of one data set, and how many records were merged into them."""
    prompts, _ = label_prompts(data.records, config.data.label)
    chosen = of_one_model(
        prompts, model=model, consensus=config.data.consensus, held_out=config.data.held_out_models
    )
    return [replace(item, source=data.card.id) for item in chosen], len(data.records) - len(chosen)


def _times(name: str) -> tuple[str, int]:
    """Return a data set of `also`, and how many times an epoch takes it."""
    dataset, star, times = name.partition("*")
    if star and (not times.isdigit() or int(times) < 1):
        raise ConfigError(
            f"data.also has {name!r}; use NAME or NAME*COUNT with a count of 1 or more"
        )
    return dataset, int(times or 1)
