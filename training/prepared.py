"""Settings -> labelled, split prompts: the start of every command that trains. No torch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scoring_service.errors import DataError
from training.cards import LoadedData, load_data
from training.config import TrainConfig
from training.labels import label_prompts
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
    prompts, num_merged = label_prompts(data.records, config.data.label)
    prepared = Prepared(
        config=config,
        data=data,
        splits=split_prompts(prompts, config.split),
        num_merged=num_merged,
    )
    for name in ("train", "val", "test"):
        part = getattr(prepared.splits, name)
        if np.ptp([item.observed for item in part]) == 0:
            raise DataError(
                f"every length of the {name} part is {part[0].observed}, so there is no order to "
                "learn and tau_b is undefined; give responses of different lengths"
            )
    splits = prepared.splits
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


def split_rule(config: Mapping[str, Any] | TrainConfig) -> dict[str, Any]:
    """The part of a configuration that decides which prompts may be trained on."""
    settings = asdict(config) if isinstance(config, TrainConfig) else config
    return {key: settings["split"][key] for key in ("seed", "val_fraction", "test_fraction")}
