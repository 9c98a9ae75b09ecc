"""`lengthwise`: every command of the three packages under one name.

The packages above are found by their entry points and called through their `Program`.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, Literal, get_origin, get_type_hints

from lengthwise.command_line.options import POSITIONAL, make_parser
from lengthwise.command_line.program import DISTRIBUTION, Program, programs, run_named, table_of
from lengthwise.command_line.stand_ins import absent_libraries_stood_in

_ABOUT: Final = """usage: lengthwise COMMAND ...        lengthwise COMMAND --help

Order LLM requests by the predicted length of their answers: train a ranker, serve it, schedule.

{commands}

examples:
  lengthwise fit demo --out mlruns/demo
  lengthwise serve --bundle mlruns/demo/bundle --address 127.0.0.1:50051
  lengthwise simulate --policy pars --num-requests 2000

Each is also a command of its package: `python -m training fit`."""
OWN: Final = Program(
    module="lengthwise",
    title="Other",
    about="Show what is read from a log of requests, and complete words in a shell.",
    commands={
        "inspect": (
            "lengthwise.command_line.inspect_log:inspect",
            "what is read from a log or table",
        ),
        "completion": (
            "lengthwise.__main__:completion",
            'tab completion: eval "$(lengthwise completion bash)"',
        ),
    },
    extra="simulate",
)


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """The shell."""

    shell: Literal["bash", "zsh", "fish"] = field(metadata=POSITIONAL)
    """bash, zsh or fish."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 2 after an error of ours, 130 after Ctrl-C."""
    if not sys.flags.safe_path and (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # last, unlike `python -m`: no file here takes a library's place
    return run_named(by_name([OWN, *programs().values()]), help_page, arguments)


def by_name(found: Iterable[Program]) -> dict[str, Program]:
    """Return the program of each command."""
    named = [(command, program) for program in found for command in program.commands]
    assert len(dict(named)) == len(named), "two commands have one name"
    return dict(named)


def help_page() -> str:
    """Return the commands, grouped by package, and examples."""
    found = [*programs().values(), OWN]
    width = max(map(len, by_name(found)))
    groups = [f"{program.title}\n{table_of(program.commands, width)}" for program in found]
    return _ABOUT.format(commands="\n\n".join(groups))


def completion(options: CompletionOptions) -> None:
    """Print the script that completes commands, options and their known values in a shell."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(prog=DISTRIBUTION)
    commands = parser.add_subcommands(required=False)
    for name, program in by_name([*programs().values(), OWN]).items():
        with absent_libraries_stood_in():
            function = program.command(name)
            if "arguments" in get_type_hints(function):
                function = program.command(name, "run")
        known = make_parser(f"{DISTRIBUTION} {name}", function)
        actions: list[Any] = known._actions
        for action in actions:
            action.option_strings = [word.replace("_", "-") for word in action.option_strings]
            if place := program.values.get(action.dest):
                module, _, values = place.partition(":")
                action.nargs = "*" if get_origin(action._typehint) is list else None
                action._typehint = Literal[tuple(getattr(import_module(module), values))]
        commands.add_subcommand(name, known, help=program.commands[name][1])
    print(parser.get_completion_script(f"shtab-{options.shell}"))


if __name__ == "__main__":
    sys.exit(main())
