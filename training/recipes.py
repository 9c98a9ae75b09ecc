"""Named experiments: each function returns one configuration. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from scoring_service.errors import ConfigError
from training.config import DataConfig, TrainConfig
from training.splits import SplitConfig


def demo() -> TrainConfig:
    """4,000 Alpaca prompts x Vicuna-7B lengths, 2 epochs: minutes on two CPU cores."""
    return TrainConfig(
        name="demo",
        data=DataConfig(dataset="alpaca-vicuna7b", max_prompt_tokens=64),
        split=SplitConfig(train_prompts=4000, val_prompts=500, test_prompts=2000),
        epochs=2,
    )


RECIPES: Final[dict[str, Callable[[], TrainConfig]]] = {"demo": demo}


def recipe(name: str) -> TrainConfig:
    """The configuration of that name.

    Raises:
        ConfigError: no such recipe; the message lists them.
    """
    if name not in RECIPES:
        raise ConfigError(f"no recipe {name!r}; use one of {', '.join(RECIPES)}")
    return RECIPES[name]()
