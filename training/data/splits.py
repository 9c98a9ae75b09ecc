"""Splits: training, validation and test prompts. Pure, seeded, by prompt hash and never by row.

The text of a prompt and the seed decide its part, in every file and for every model.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from lengthwise.errors import DataError
from training.config import SplitConfig
from training.data.labels import LabelledPrompt
from training.data.records import prompt_hash

MAX_CALIBRATION: Final = 3000
"""More prompts take longer to score and hardly shrink the sampling error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Splits:
    """Disjoint sets of prompts, each in hash order."""

    train: list[LabelledPrompt]
    val: list[LabelledPrompt]
    test: list[LabelledPrompt]
    calibration: list[LabelledPrompt] = field(default_factory=list)
    """Prompts that the score -> length curves are fitted on: the whole validation part, and the
    training part beyond its limit. Never trained or tested on."""

    @property
    def test_digest(self) -> str:
        """SHA-256 over the test prompts; figures of two runs compare if it is equal."""
        return hashlib.sha256("".join(item.key for item in self.test).encode()).hexdigest()


def split_prompts(prompts: Sequence[LabelledPrompt], config: SplitConfig) -> Splits:
    """Split the prompts by the seeded hash of their normalised text."""
    parts = parts_of(prompts, config)
    unused = parts["train"][config.train_prompts :] if config.train_prompts else []
    splits = Splits(
        **{name: part[: getattr(config, f"{name}_prompts")] for name, part in parts.items()},
        calibration=[*parts["val"], *unused][:MAX_CALIBRATION],
    )
    for name in parts:
        if (count := len(getattr(splits, name))) < 2:
            raise DataError(
                f"only {len(prompts)} distinct prompts, {count} of them in the {name} part; "
                "ranking needs two in each: give more data or larger fractions"
            )
    return splits


def position(prompt: str, seed: int) -> float:
    """Return a uniform number in [0, 1) from the prompt's text and the seed."""
    return int(prompt_hash(prompt, salt=f"lengthwise-split-{seed}")[:12], 16) / 2**48


def parts_of(
    prompts: Sequence[LabelledPrompt], config: SplitConfig
) -> dict[str, list[LabelledPrompt]]:
    """Return the prompts of each part in hash order, without limits and however few."""
    places = np.array([position(item.prompt, config.seed) for item in prompts])
    bounds = [config.test_fraction, config.test_fraction + config.val_fraction]
    order = np.argsort(places, kind="stable")
    rows = np.split(order, np.searchsorted(places[order], bounds))
    test, val, train = ([prompts[n] for n in part] for part in rows)
    return {"train": train, "val": val, "test": test}
