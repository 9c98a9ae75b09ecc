"""Which prompt is trained on, which is tested on. Pure, seeded, by prompt hash and never by row.

A prompt's part follows from its text alone, so it is the same in every file, for every model and
after every append; a test prompt can never have been trained on, in this run or another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from scoring_service.errors import ConfigError, DataError
from training.data.labels import LabelledPrompt
from training.data.records import prompt_hash

MAX_CALIBRATION: Final = 3000
"""More prompts would be scored at the end of every run, and sampling error would hardly shrink."""


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """How prompts are parted; what is neither validation nor test is trained on."""

    val_fraction: float = 0.05
    """Part kept for choices: which checkpoint, which precision; and for calibration."""
    test_fraction: float = 0.15
    """Part kept for the figures that are reported; nothing is chosen on it."""
    train_prompts: int | None = None
    """At most this many of the part, taken in hash order; None takes all."""
    val_prompts: int | None = None
    """At most this many to choose by; calibration takes all of the part."""
    test_prompts: int | None = None
    seed: int = 0
    """Another seed is another partition; figures of two seeds are not comparable."""

    def __post_init__(self) -> None:
        for name in ("val_fraction", "test_fraction"):
            if not 0 < getattr(self, name) < 0.5:
                raise ConfigError(
                    f"split.{name} is {getattr(self, name)}; use a fraction in (0, .5)"
                )
        for name in ("train_prompts", "val_prompts", "test_prompts"):
            count = getattr(self, name)
            if count is not None and count < 2:
                raise ConfigError(f"split.{name} is {count}; use 2 or more, or leave it out")


@dataclass(frozen=True, kw_only=True, slots=True)
class Splits:
    """Disjoint sets of prompts, each in hash order."""

    train: list[LabelledPrompt]
    val: list[LabelledPrompt]
    test: list[LabelledPrompt]
    calibration: list[LabelledPrompt] = field(default_factory=list)
    """Prompts that scores are turned into tokens by: the validation part, beyond its limit too, and
    what a limit kept from training. Never trained or tested on."""

    @property
    def test_digest(self) -> str:
        """SHA-256 over the test prompts: two runs are comparable where this is equal."""
        digest = hashlib.sha256()
        for item in self.test:
            digest.update(prompt_hash(item.prompt).encode())
        return digest.hexdigest()


def split_prompts(prompts: Sequence[LabelledPrompt], config: SplitConfig) -> Splits:
    """Part the prompts by the seeded hash of their normalised text.

    Raises:
        DataError: a part would have fewer than two prompts, so nothing could be ranked in it.
    """
    keyed = sorted((position(item.prompt, config.seed), n) for n, item in enumerate(prompts))
    parts: dict[str, list[LabelledPrompt]] = {"train": [], "val": [], "test": []}
    for fraction, n in keyed:
        parts[_part(fraction, config)].append(prompts[n])
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
    """The prompts that are neither validated nor tested on, in hash order, however few."""
    keyed = sorted((position(item.prompt, config.seed), n) for n, item in enumerate(prompts))
    return [prompts[n] for fraction, n in keyed if _part(fraction, config) == "train"]


def position(prompt: str, seed: int) -> float:
    """Where a prompt falls in [0, 1), uniformly, from its text and the seed."""
    return int(prompt_hash(prompt, salt=f"lengthwise-split-{seed}")[:12], 16) / 2**48


def _part(fraction: float, config: SplitConfig) -> str:
    if fraction < config.test_fraction:
        return "test"
    return "val" if fraction < config.test_fraction + config.val_fraction else "train"
