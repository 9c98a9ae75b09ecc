"""How our commands read their arguments: a frozen dataclass each, its docstrings the help."""

from __future__ import annotations

import logging
import re
import sys
from argparse import ArgumentError
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from scoring_service.command_line import make_parser, underscored
from scoring_service.errors import LengthwiseError

Config = TypeVar("Config")
INTERRUPTED = 130
"""Exit code after Ctrl-C: what shells give a process that SIGINT ended."""


def run_command(
    name: str,
    config_class: type[Config],
    run: Callable[[Config], int | None],
    arguments: Sequence[str],
    *,
    positional: str = "",
) -> int:
    """Build `config_class` from `arguments` and run it.

    Returns the exit code: 2 for bad input, 130 for Ctrl-C.

    Arguments that come first without a -- belong to the field `positional`.
    """
    if positional and arguments and not arguments[0].startswith("-"):
        arguments = [f"--{positional}={arguments[0]}", *arguments[1:]]
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    parser = make_parser(f"python -m scheduler_adapters {name}", run.__doc__)
    parser.add_class_arguments(config_class, as_group=False)
    given = ["--json=true" if argument == "--json" else argument for argument in arguments]
    parser.exit_on_error = False  # its own messages are thirty lines long
    try:
        parsed = parser.parse_args(underscored(given))
        return run(config_class(**_settings(config_class, parsed))) or 0
    except ArgumentError as error:
        print(f"error: {_in_one_line(str(error), config_class)}", file=sys.stderr)
        return 2
    except LengthwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _in_one_line(message: str, config_class: type[Any]) -> str:
    """What a parser's message says: which setting, the value it got, and what it takes."""
    name = re.search(r'Parser key "(\w+)', message)
    value = re.search(r"(?:Got|Given) value: (.*)", message)
    if name is None or value is None:
        return f"{' '.join(message.split())}; see --help for the settings"
    takes = {field.name: field.type for field in fields(config_class)}.get(name[1], "another value")
    if str(takes).startswith("list[") and not value[1].startswith("["):
        items = ", ".join(item.strip() for item in value[1].split(","))
        return f"{name[1]} is {value[1]!r}; use '[{items}]'"
    return f"{name[1]} is {value[1]!r}; it takes {takes} (see --help)"


def _settings(config_class: type[Any], parsed: Any) -> dict[str, Any]:
    return {field.name: getattr(parsed, field.name) for field in fields(config_class)}
