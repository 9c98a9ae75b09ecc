"""What the commands of training share: their parser, and where messages go."""

from __future__ import annotations

import logging
import sys
from typing import Any

from jsonargparse import ArgumentParser

from scoring_service import command_line


def make_parser(command: str, usage: str, description: str) -> ArgumentParser:
    """A parser for `python -m training COMMAND`; settings document themselves."""
    return command_line.make_parser(f"python -m training {command}", description, usage)


def configure_logging() -> None:
    """Our messages go to stderr as they are; libraries speak only when something is wrong."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("training").setLevel(logging.INFO)
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    # The parent's level is set by Lightning itself, whenever it is imported.
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)


def without_nan(value: Any) -> Any:
    """The same with None for NaN, at any depth: JSON has no word for what is undefined."""
    if isinstance(value, dict):
        return {key: without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and value != value else value
