"""How our commands read their arguments: a frozen dataclass each, its docstrings the help."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_parsing_settings

from scoring_service.errors import LengthwiseError

Config = TypeVar("Config")


class RawHelp(DefaultHelpFormatter):
    """Keeps the line breaks of the examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text


def run_command(
    name: str,
    config_class: type[Config],
    run: Callable[[Config], int | None],
    arguments: Sequence[str],
    *,
    positional: str = "",
) -> int:
    """Build `config_class` from `arguments` and run it. Returns the exit code: 2 for bad input.

    Arguments that come first without a -- belong to the field `positional`.
    """
    if positional and arguments and not arguments[0].startswith("-"):
        arguments = [f"--{positional}={arguments[0]}", *arguments[1:]]
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = ArgumentParser(
        prog=f"python -m scheduler_adapters {name}",
        description=run.__doc__,
        formatter_class=RawHelp,
    )
    parser.add_class_arguments(config_class, as_group=False)
    parsed = parser.parse_args([_underscored(argument) for argument in arguments])
    try:
        return run(config_class(**_settings(config_class, parsed))) or 0
    except LengthwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _settings(config_class: type[Any], parsed: Any) -> dict[str, Any]:
    return {field.name: getattr(parsed, field.name) for field in fields(config_class)}


def _underscored(argument: str) -> str:
    """`--max-num-seqs=1` is as good as `--max_num_seqs=1`; a bare `--json` means true."""
    if argument == "--json":
        return "--json=true"
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"
