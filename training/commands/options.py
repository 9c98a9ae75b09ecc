"""Options shared by several commands, and the output of a result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from lengthwise.command_line.program import print_next
from lengthwise.errors import ConfigError, raised_as
from lengthwise.strict_json import to_json

CONFIG: Final = "config.yaml"
"""File in the folder of a `fit` with all its settings."""


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The form of the output."""

    json: bool = False
    """Print the result as one JSON line."""


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """The MLflow store of a command."""

    mlruns_dir: str = "mlruns"
    """MLflow store: a folder, or the address of a server; the default gives way to
    $MLFLOW_TRACKING_URI."""


@dataclass(frozen=True, kw_only=True)
class BundleOptions(StoreOptions):
    """A model bundle in a folder or a registry."""

    bundle: str
    """Folder, NAME/VERSION or NAME@champion."""


def read_config(path: str | Path) -> dict[str, Any]:
    """Return the settings in a config.yaml."""
    text = f"{path} cannot be read as YAML: {{}}"
    with raised_as(ConfigError, text, OSError, ValueError, yaml.YAMLError):
        content = yaml.safe_load(Path(path).read_text())
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no settings; give the config.yaml of a run")
    return content


def print_result(
    result: Mapping[str, Any], output: OutputOptions, show: Callable[[], None], *commands: str
) -> None:
    """Print a result as one JSON line, or its `show` and the next commands."""
    if output.json:
        print(to_json(result))
    else:
        show()
        print_next(*commands)


def print_rows(rows: Mapping[str, object], width: int) -> None:
    """Print each name, padded to `width` characters, and its value."""
    for name, value in rows.items():
        print(f"{name:{width}}{value}")
