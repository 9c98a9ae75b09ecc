"""Settings -> labelled, split prompts: the start of every command that trains. No torch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from scoring_service.errors import ConfigError, DataError
from training.cards import LoadedData, load_data
from training.config import TrainConfig
from training.labels import LabelledPrompt, label_prompts, of_one_model
from training.splits import Splits, split_prompts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A data set, ready to be trained on."""

    config: TrainConfig
    data: LoadedData
    splits: Splits
    num_merged: int
    """Records folded into another record's prompt: repeated samples and duplicates."""

    def describe(self) -> dict[str, Any]:
        """What a manifest keeps of the data set."""
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
    """Load the data set, label its prompts, split them, and say what came of it.

    Raises:
        DataError: the data breaks its card, or nothing can be ranked in it.
    """
    data = load_data(config.data.dataset, data_dir)
    prompts, num_merged = _labelled(data, config)
    splits = split_prompts(prompts, config.split)
    for name in config.data.also:
        dataset, _, times = name.partition("*")
        other, merged = _labelled(load_data(dataset, data_dir), config)
        part = split_prompts(other, replace(config.split, train_prompts=None)).train
        splits = replace(splits, train=splits.train + part * _times(name, times))
        num_merged += merged
    prepared = Prepared(config=config, data=data, splits=splits, num_merged=num_merged)
    for name in ("train", "val", "test"):
        part = getattr(prepared.splits, name)
        if np.ptp([item.observed for item in part]) == 0:
            raise DataError(
                f"every length of the {name} part is {part[0].observed}, so there is no order to "
                "learn and tau_b is undefined; give responses of different lengths"
            )
    logger.info(
        "data %s from %s: %d train, %d validation, %d test prompts; %d records merged into the "
        "prompt they repeat, %d empty responses dropped",
        data.card.id,
        data.origin,
        len(splits.train),
        len(splits.val),
        len(splits.test),
        num_merged,
        data.num_empty,
    )
    return prepared


def _labelled(data: LoadedData, config: TrainConfig) -> tuple[list[LabelledPrompt], int]:
    """The prompts of one data set with one label each, and how many records they came from more."""
    prompts, _ = label_prompts(data.records, config.data.label)
    chosen = of_one_model(
        prompts,
        model=config.data.model,
        consensus=config.data.consensus,
        held_out=config.data.held_out_models,
    )
    return [replace(item, source=data.card.id) for item in chosen], len(data.records) - len(chosen)


def _times(name: str, times: str) -> int:
    if not times:
        return 1
    if not times.isdigit() or int(times) < 1:
        raise ConfigError(
            f"data.also has {name!r}; use NAME or NAME*COUNT with a count of 1 or more"
        )
    return int(times)


def split_rule(config: Mapping[str, Any] | TrainConfig) -> dict[str, Any]:
    """The part of a configuration that decides which prompts may be trained on."""
    settings = asdict(config) if isinstance(config, TrainConfig) else config
    return {key: settings["split"][key] for key in ("seed", "val_fraction", "test_fraction")}
