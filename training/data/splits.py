"""Splits: training, validation and test prompts. Pure, seeded, by prompt hash and never by row.

A prompt's part follows from its text and the seed, so it is the same in every file, for every model
and after every append: a test prompt was not trained on, in this run or any other of that seed.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from lengthwise.errors import DataError
from training.config import SplitConfig
from training.data.labels import LabelledPrompt
from training.data.records import prompt_hash

MAX_CALIBRATION: Final = 3000
"""Scoring more prompts takes longer and hardly shrinks the sampling error."""


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
        digest = hashlib.sha256()
        for item in self.test:
            digest.update(prompt_hash(item.prompt).encode())
        return digest.hexdigest()


def split_prompts(prompts: Sequence[LabelledPrompt], config: SplitConfig) -> Splits:
    """Split the prompts by the seeded hash of their normalised text."""
    parts = _parts(prompts, config)
    limits = {name: getattr(config, f"{name}_prompts") for name in parts}
    unused = parts["train"][config.train_prompts :] if config.train_prompts else []
    splits = Splits(
        **{name: part[: limits[name]] for name, part in parts.items()},
        calibration=[*parts["val"], *unused][:MAX_CALIBRATION],
    )
    for name in parts:
        if (count := len(getattr(splits, name))) < 2:
            raise DataError(
                f"only {len(prompts)} distinct prompts, {count} of them in the {name} part; "
                "ranking needs two in each: give more data or larger fractions"
            )
    return splits


def training_part(prompts: Sequence[LabelledPrompt], config: SplitConfig) -> list[LabelledPrompt]:
    """Return the training part of the prompts, in hash order, however few."""
    return _parts(prompts, config)["train"]


def position(prompt: str, seed: int) -> float:
    """Return a uniform number in [0, 1) that follows from the prompt's text and the seed."""
    return int(prompt_hash(prompt, salt=f"lengthwise-split-{seed}")[:12], 16) / 2**48


def _parts(
    prompts: Sequence[LabelledPrompt], config: SplitConfig
) -> dict[str, list[LabelledPrompt]]:
    """Return the prompts of each part, without limits, in hash order."""
    parts: dict[str, list[LabelledPrompt]] = {"train": [], "val": [], "test": []}
    keyed = sorted((position(item.prompt, config.seed), n) for n, item in enumerate(prompts))
    for place, n in keyed:
        is_val = place < config.test_fraction + config.val_fraction
        name = "test" if place < config.test_fraction else "val" if is_val else "train"
        parts[name].append(prompts[n])
    return parts
