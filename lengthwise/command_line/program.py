"""Programs: the commands of each package, and one exit code and one line for every failure.

    commands = {"score": ("score:score", "score prompts with a running service")}
    PROGRAM = Program(module="scoring_service", commands=commands, title="Scores", extra="serve")
    PROGRAM.run(arguments)

`options.py` builds the options of a command. The programs of the packages above this one are found
by the entry points of the group `lengthwise.commands`.
"""

import dataclasses
import errno
import importlib
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final, TextIO, get_type_hints

from lengthwise import __version__
from lengthwise.addresses import bypass_proxies
from lengthwise.command_line.logs import configure_logs, printable
from lengthwise.command_line.options import HELP, Command, parse
from lengthwise.command_line.stand_ins import PACKAGES, absent_libraries_stood_in, is_ours
from lengthwise.errors import ConfigError, LengthwiseError

Commands = Mapping[str, tuple[str, str]]
"""Name -> place and one line of help. A place is "module:function", where a module below
PACKAGE.commands has its short name. The module is imported when the command runs."""
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C: that of shells for a process which SIGINT ended."""
DISTRIBUTION: Final = "lengthwise"
ENTRY_POINTS: Final = "lengthwise.commands"
"""Group of entry points, module -> its Program."""
_DISK_ERRORS: Final = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES),
    *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR),  # EEXIST: a file in the place of a folder
}


@dataclass(frozen=True, kw_only=True)
class Program:
    """The commands of one package: `python -m MODULE COMMAND`, or `lengthwise COMMAND`."""

    module: str
    title: str
    """Heading of its commands in the help of `lengthwise`."""
    about: str
    commands: Commands
    """Functions of dataclasses, which are built from options. A function of
    `arguments: Sequence[str]` parses them itself for the function `run` beside it."""
    extra: str
    """The extra of the distribution that its commands need."""
    extras: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Command -> its own extra, where that differs."""
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Option -> "module:names" of its known values, for completion."""
    prepare: Callable[[], None] = configure_logs
    """Sets up the log and the process before a command."""

    def run(self, arguments: Sequence[str] | None = None) -> int:
        """Run the command that the first argument names, as `run_named` does."""
        return run_named(dict.fromkeys(self.commands, self), self.help_page, arguments)

    def help_page(self) -> str:
        """Return the usage, the purpose and the commands."""
        return (
            f"usage: python -m {self.module} COMMAND [options]\n\n{self.about}\n\n"
            f"commands:\n{table_of(self.commands)}\n\n"
            "COMMAND --help shows examples and the common options of a command, --help-all all."
        )

    def command(self, name: str, function: str | None = None) -> Command:
        """Import the function of a command, or another function of its module."""
        module, _, own = self.commands[name][0].partition(":")
        if not module.startswith(f"{self.module}."):
            module = f"{self.module}.commands.{module}"
        found: Command = getattr(importlib.import_module(module), function or own)
        return found

    def run_command(self, name: str, arguments: Sequence[str]) -> int:
        """Run one of the commands; returns the exit code."""
        self.prepare()
        return exit_code_of(partial(self._run, name, arguments))

    def _run(self, name: str, arguments: Sequence[str]) -> int | None:
        try:
            with absent_libraries_stood_in() if {*HELP} & {*arguments} else nullcontext():
                command = self.command(name)
            if "arguments" in get_type_hints(command):
                return command(arguments)
            return run_command(f"python -m {self.module} {name}", command, arguments)
        except ImportError as error:  # a folder of a library's name imports as an empty package
            if error.name is None or error.path is not None or is_ours(error.name):
                raise
            raise ConfigError(
                f"{name} needs {error.name}, which is not installed; "
                f"pip install 'lengthwise[{self.extras.get(name, self.extra)}]'"
            ) from error


@cache
def programs() -> Mapping[str, Program]:
    """Return the installed programs by module, as the entry points of the group name them."""
    try:
        points = distribution(DISTRIBUTION).entry_points.select(group=ENTRY_POINTS)
    except PackageNotFoundError:  # run from a checkout that is on the path only
        return {}
    return {module: points[module].load() for module in PACKAGES}


def table_of(commands: Commands, width: int = 0) -> str:
    """Return a line for each command: its name and its help."""
    width = max(width, *map(len, commands))
    return "\n".join(f"  {name:{width}}  {text}" for name, (_, text) in commands.items())


def run_named(
    named: Mapping[str, Program],
    help_page: Callable[[], str],
    arguments: Sequence[str] | None,
) -> int:
    """Run the command that the first argument names; returns the exit code, 2 for bad input.

    Args:
        named: command -> its program.
        arguments: without the program's name; None: the arguments of this process.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words or words[0] in HELP:
        return exit_code_of(lambda: print(help_page())) or (0 if words else 2)
    if words[0] == "--version":
        return exit_code_of(lambda: print(f"{DISTRIBUTION} {__version__}"))
    if (name := words[0]) not in named:
        near = [other for other in named if name in other] or get_close_matches(name, named)
        advice = f"use {' or '.join(near)}" if near else f"use one of {', '.join(named)}"
        print(f"error: no command named {name!r}; {advice}", file=sys.stderr)
        return 2
    return named[name].run_command(name, words[1:])


def as_typed(text: str) -> str:
    """Return `text` with each `python -m PACKAGE COMMAND` as `lengthwise NAME` if so called."""
    if Path(sys.argv[0]).name != DISTRIBUTION:
        return text

    def short(match: re.Match[str]) -> str:
        program = programs().get(match[1])
        is_ours = match[1] == DISTRIBUTION or (program is not None and match[2] in program.commands)
        return f"{DISTRIBUTION} {match[2]}" if is_ours else match[0]

    return re.sub(r"python -m (\w+) ([a-z][a-z-]*)", short, text)


def print_next(*commands: str) -> None:
    """Print the following commands, given as `python -m PACKAGE COMMAND ...`."""
    for command in commands:
        print(f"next: {as_typed(command)}")


def run_command(
    program: str,
    command: Command,
    arguments: Sequence[str],
    *,
    defaults: Mapping[str, Any] | None = None,
    description: str | None = None,
    extend: Callable[[Any], None] | None = None,
) -> int:
    """Build the command's dataclasses from `arguments` and run it; returns the exit code.

    The parameters are those of `options.parse`.
    """
    bypass_proxies()
    given = partial(parse, program, command, arguments, defaults, description)
    return exit_code_of(lambda: command(**given(reword=as_typed, extend=extend)))


def exit_code_of(run: Callable[[], int | None]) -> int:
    """Call `run`; our errors, full disks and Ctrl-C become one line on stderr and an exit code.

    A reader of stdout that stops early, as `head` does, ends the command without a message.
    """
    try:
        try:
            return run() or 0
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _has_lost_its_reader(sys.stdout):
            raise
        return 128 + signal.SIGPIPE
    except LengthwiseError as error:
        # Messages of libraries may have several lines, and values control characters.
        print("error: " + printable(" ".join(str(error).split())), file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        place = error.filename2 or error.filename
        advice = "choose another place, or make room"
        print(f"error: {place} cannot be written ({error.strerror}); {advice}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _has_lost_its_reader(output: TextIO) -> bool:
    """Return whether the pipe of a stream is closed; the stream then discards what is written."""
    pipe = select.poll()
    pipe.register(output.fileno(), 0)
    if not any(event & select.POLLERR for _, event in pipe.poll(0)):
        return False
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), output.fileno())
    return True
