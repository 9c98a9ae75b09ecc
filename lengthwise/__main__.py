"""`lengthwise`: every command of the three packages under one name.

The packages above are found by their entry points and called through their `Program`.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_type_hints

from lengthwise.command_line.options import POSITIONAL, Command, make_parser
from lengthwise.command_line.program import DISTRIBUTION, Program, programs, run_named, table_of

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
    examples="inspect gateway.jsonl",
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
    return run_named(by_name([OWN, *programs().values()]), help_page, arguments)


def by_name(found: Iterable[Program]) -> dict[str, tuple[Program, str]]:
    """Return the program and its command by the unique name under `lengthwise`."""
    named = [
        (program.names.get(command, command), (program, command))
        for program in found
        for command in program.commands
    ]
    assert len(dict(named)) == len(named), "two commands have one name; see Program.names"
    return dict(named)


def help_page() -> str:
    """Return the commands, grouped by package, and examples."""
    found = [*programs().values(), OWN]
    width = max(map(len, by_name(found)))
    groups = [
        f"{program.title}\n"
        + table_of({program.names.get(c, c): line for c, line in program.commands.items()}, width)
        for program in found
    ]
    return _ABOUT.format(commands="\n\n".join(groups))


def completion(options: CompletionOptions) -> None:
    """Print the script that completes commands and options in a shell.

    A command whose packages are not installed is completed by its name only.
    """
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(prog=DISTRIBUTION)
    commands = parser.add_subcommands(required=False)
    for name, (program, command) in by_name([*programs().values(), OWN]).items():
        known = make_parser(f"{DISTRIBUTION} {name}", _settings_of(program, command))
        for action in known._actions:
            action.option_strings = [word.replace("_", "-") for word in action.option_strings]
        commands.add_subcommand(name, known, help=program.commands[command][1])
    print(parser.get_completion_script(f"shtab-{options.shell}"))


def _settings_of(program: Program, name: str) -> Command:
    """Return the function with the options of a command: `run` if the command parses its own."""
    try:
        command = program.command(name)
        return program.command(name, "run") if "arguments" in get_type_hints(command) else command
    except ImportError:
        return nothing


def nothing() -> None:
    """Stand for a command that cannot be imported."""


if __name__ == "__main__":
    sys.exit(main())
