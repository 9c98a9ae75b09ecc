"""Splits: training, validation and test prompts. Seeded, by prompt hash and never by row.

The text of a prompt (or its group) and the seed decide its part, in every file and for every model.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from lengthwise.errors import DataError
from training.config import SplitConfig
from training.data.records import Dataset, column, fingerprint, prompt_hash

MAX_CALIBRATION: Final = 3000
"""More prompts take longer to score and hardly shrink the sampling error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Splits:
    """Disjoint sets of labelled prompts, each in hash order."""

    train: Dataset
    val: Dataset
    test: Dataset
    calibration: Dataset
    """Prompts that the score -> length curves are fitted on: the whole validation part, and the
    training part beyond its limit. Never trained or tested on."""

    @property
    def test_digest(self) -> str:
        """SHA-256 over the test prompts; figures of two runs compare if it is equal."""
        return digest_of_prompts(self.test)


def digest_of_prompts(items: Dataset) -> str:
    keys = (key for batch in items.select_columns(["key"]).iter(1000) for key in batch["key"])
    return hashlib.sha256("".join(key.hex() for key in keys).encode()).hexdigest()


def split_prompts(prompts: Dataset, config: SplitConfig) -> Splits:
    """Split the prompts by the seeded hash of their normalised text."""
    from datasets import concatenate_datasets

    parts = parts_of(prompts, config)
    limits = {name: getattr(config, f"{name}_prompts") for name in parts}
    kept = {
        name: part if limits[name] is None else part.take(min(limits[name], len(part)))
        for name, part in parts.items()
    }
    for name, part in kept.items():
        if len(part) < 2:
            raise DataError(
                f"only {len(prompts)} distinct prompts, {len(part)} of them in the {name} part; "
                "ranking needs two in each: give more data or larger fractions"
            )
    unused = (
        [parts["train"].skip(limit)] if (limit := len(kept["train"])) < len(parts["train"]) else []
    )
    calibration = concatenate_datasets([parts["val"], *unused])
    return Splits(**kept, calibration=calibration.take(min(MAX_CALIBRATION, len(calibration))))


def position(prompt: str, seed: int) -> float:
    """Return a uniform number in [0, 1) from the prompt's text and the seed."""
    return int(prompt_hash(prompt, salt=f"lengthwise-split-{seed}")[:12], 16) / 2**48


def positions(prompts: Dataset, seed: int, key: str = "prompt") -> Any:
    """Return the position of every prompt, or of its group, float64 (N,)."""

    def place(batch: dict[str, list[Any]]) -> dict[str, list[float]]:
        return {"position": [position(text, seed) for text in batch[key]]}

    name = fingerprint(prompts._fingerprint, seed, key)
    columns = prompts.column_names
    found = prompts.map(place, batched=True, remove_columns=columns, new_fingerprint=name)
    return np.asarray(column(found, "position"))


def parts_of(prompts: Dataset, config: SplitConfig) -> dict[str, Dataset]:
    """Return the prompts of each part in hash order, without limits and however few."""
    key = "group" if config.by_group else "prompt"
    places = positions(prompts, config.seed, key) if len(prompts) else np.empty(0)
    bounds = [config.test_fraction, config.test_fraction + config.val_fraction]
    order = np.argsort(places, kind="stable")
    rows = np.split(order, np.searchsorted(places[order], bounds))
    test, val, train = map(prompts.select, rows)
    return {"train": train, "val": val, "test": test}
