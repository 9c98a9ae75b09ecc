"""Command lines of the three packages: commands, options from frozen dataclasses, form of the log.

A command is a function whose parameters are dataclasses. Each field is an option, its docstring the
help, the function's docstring the description:

    COMMANDS = {"score": ("scoring_service.commands.score:score", "score prompts with a service")}
    PROGRAM = Program(module="scoring_service", about=ABOUT, commands=COMMANDS, ...)
    PROGRAM.run(arguments)

The programs of all packages are also one, `lengthwise` (`__main__.py`): each is named by
an entry point of the group `lengthwise.commands`, so that no import leads from here to a package
above. `--help` shows a command's purpose, examples and at most ten options (`common_options` says
which), `--help-all` everything.

Options are written with hyphens (`--batch-size`; underscores are understood), nested fields with
dots (`--loss.delta .3`), flags without a value (`--json`, `--no-resume`), and lists as words or as
JSON (`--lengths 16 32`, `--lengths '[16, 32]'`). Fields marked POSITIONAL need no option.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib
import json
import logging
import os
import re
import select
import signal
import sys
import time
from argparse import SUPPRESS, Action, ArgumentError, _HelpAction
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from inspect import cleandoc
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    TextIO,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from lengthwise.errors import ConfigError, LengthwiseError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

Commands: TypeAlias = Mapping[str, tuple[str, str]]
"""Name -> "module:function" and one line of help. The module is imported when the command runs."""
Run: TypeAlias = Callable[..., int | None]
"""A command: takes dataclasses, returns the exit code (None: 0)."""
POSITIONAL: Final[Mapping[str, Any]] = {"positional": True}
"""Metadata of a field that may be given without its option; a list takes all that is left."""
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C: what shells give a process that SIGINT ended."""
LOG_FORMATS: Final = ("text", "json")
HELP: Final = ("-h", "--help", "--help-all")
DISTRIBUTION: Final = "lengthwise"
ENTRY_POINTS: Final = "lengthwise.commands"
"""Group of entry points, module -> its Program."""
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_OURS: Final = ("training", "scoring_service", "scheduler_adapters")
"""The packages, in the order of the help of `lengthwise`."""
_MAX_SHORT: Final = 10
"""Options in --help."""
_QUIET_S: Final = 5.0
_DISK_ERRORS: Final = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EEXIST,  # a file where a folder is to be made
    errno.ENOTDIR,
    errno.EISDIR,
}


def log_to_stderr() -> None:
    """Log INFO and above as lines on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter("%(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


@dataclass(frozen=True, kw_only=True)
class Program:
    """The commands of one package: `python -m MODULE COMMAND`, or `lengthwise COMMAND`."""

    module: str
    """The package."""
    title: str
    """Of its commands in the help of `lengthwise`."""
    about: str
    """Text of --help; `{commands}` in it becomes the table of commands."""
    commands: Commands
    """A function of dataclasses is given them from options; one whose parameter is
    `arguments: Sequence[str]` reads these itself, for the function `run` beside it."""
    extra: str
    """The extra of the distribution that its commands need."""
    extras: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Command -> the extra it needs instead."""
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Command -> its name under `lengthwise`, where that differs."""
    prepare: Callable[[], None] = log_to_stderr
    """Called before a command: sets up the log, and what of the process has to be."""

    def run(self, arguments: Sequence[str] | None = None) -> int:
        """Run the command that the first argument names; returns the exit code, 2 for bad input.

        Args:
            arguments: without the program's name; None: those of this process.
        """
        words = sys.argv[1:] if arguments is None else list(arguments)
        if not words or words[0] in HELP:
            text = self.about.replace("{commands}", table_of(self.commands)).rstrip()
            return exit_code_of(lambda: print(text)) or (0 if words else 2)
        name, *rest = words
        return (
            self.run_command(name, rest) if name in self.commands else unknown(name, self.commands)
        )

    def run_command(self, name: str, arguments: Sequence[str]) -> int:
        """Run one of the commands; returns the exit code."""
        self.prepare()

        def run() -> int | None:
            command = load_command(self.commands[name][0])
            if _dataclasses(command) or not get_type_hints(command).keys() - {"return"}:
                return run_command(f"python -m {self.module} {name}", command, arguments)
            return command(arguments)

        try:
            return exit_code_of(run)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] in (*_OURS, DISTRIBUTION):
                raise
            extra = self.extras.get(name, self.extra)
            print(
                f"error: {name} needs {error.name}, which is not installed; "
                f"pip install 'lengthwise[{extra}]'",
                file=sys.stderr,
            )
            return 2


@cache
def programs() -> Mapping[str, Program]:
    """The installed programs by module, as the entry points of the group name them."""
    try:
        points = distribution(DISTRIBUTION).entry_points.select(group=ENTRY_POINTS)
    except PackageNotFoundError:  # run from a checkout that is on the path only
        return {}
    return {module: points[module].load() for module in _OURS}


def load_command(place: str) -> Run:
    """Import the function of a command, "module:function"."""
    module, _, function = place.partition(":")
    command: Run = getattr(importlib.import_module(module), function)
    return command


def table_of(commands: Commands, width: int = 0) -> str:
    """Return a line for each command: its name and what it does."""
    width = max(width, *map(len, commands))
    return "\n".join(f"  {name:{width}}  {text}" for name, (_, text) in commands.items())


def unknown(name: str, known: Iterable[str]) -> int:
    """Print that there is no such command, and which one may be meant; returns the exit code."""
    near = [other for other in known if name in other] or get_close_matches(name, known)
    advice = f"use {' or '.join(near)}" if near else f"use one of {', '.join(known)}"
    print(f"error: no command named {name!r}; {advice}", file=sys.stderr)
    return 2


def as_typed(text: str) -> str:
    """Return `text` with its commands in the form in which this process was called.

    Texts name commands as `python -m PACKAGE COMMAND`; under `lengthwise` that is its own name.
    """
    if Path(sys.argv[0]).name != DISTRIBUTION:
        return text

    def short(match: re.Match[str]) -> str:
        program = programs().get(match[1])
        known = program is not None and match[2] in program.commands
        name = program.names.get(match[2], match[2]) if program and known else match[2]
        return f"{DISTRIBUTION} {name}" if known else match[0]

    return re.sub(r"python -m (\w+) ([a-z][a-z-]*)", short, text)


def print_next(*commands: str) -> None:
    """Print the command to go on with, given as `python -m PACKAGE COMMAND ...`."""
    for command in commands:
        print(f"next: {as_typed(command)}")


def common_options(*names: str) -> Callable[[Decorated], Decorated]:
    """Decorator: `--help` of the command shows these options (dotted where nested) and no others.

    Without it, those that must be given and the first ones, ten in all.
    """

    def mark(command: Decorated) -> Decorated:
        command.__dict__["common_options"] = names
        return command

    return mark


def run_command(
    program: str,
    command: Run,
    arguments: Sequence[str],
    *,
    defaults: Mapping[str, Any] | None = None,
    description: str | None = None,
) -> int:
    """Build the command's dataclasses from `arguments` and run it; returns the exit code.

    Args:
        program: as it is typed, e.g. "python -m training fit".
        defaults: field -> default in place of the dataclass's; nested fields in mappings.
        description: text of --help; None: the command's docstring.
    """
    return exit_code_of(
        lambda: command(**parse(program, command, arguments, defaults, description))
    )


def parse(
    program: str,
    command: Run,
    arguments: Sequence[str],
    defaults: Mapping[str, Any] | None = None,
    description: str | None = None,
) -> dict[str, Any]:
    """The command's dataclasses by parameter; arguments as of `run_command`.

    Raises:
        ConfigError: an argument is missing, unknown or wrong.
        SystemExit: --help or --help-all was asked for, and printed.
    """
    kinds = _dataclasses(command)
    settings = [field for kind in kinds.values() for field in fields(kind)]
    types = {name: hint for kind in kinds.values() for name, hint in _types(kind).items()}
    positional = [field.name for field in settings if field.metadata.get("positional")]
    given = _as_options(arguments, types, positional)
    parser = make_parser(program, command, description=description, is_short="--help" in given)
    parser.set_defaults(dict(defaults or {}))
    parser.exit_on_error = False  # its own messages are thirty lines long
    try:
        values = parser.instantiate(parser.parse_args(given))
    except ArgumentError as error:
        raise ConfigError(_in_one_line(str(error), types)) from error
    return {
        name: kind(**{field.name: values[field.name] for field in fields(kind)})
        for name, kind in kinds.items()
    }


def exit_code_of(run: Callable[[], int | None]) -> int:
    """Call `run`; errors of ours, full disks and Ctrl-C become one line on stderr and a code.

    Who reads stdout may stop before its end, as `head` does: nothing is said then.
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
        # Foreign messages in it may have lines, and values control characters, of their own.
        print("error: " + _printable(" ".join(str(error).split())), file=sys.stderr)
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
    """Return whether nobody reads a stream any more; it then writes to nowhere from now on."""
    look = select.poll()
    look.register(output.fileno(), 0)
    if not any(event & select.POLLERR for _, event in look.poll(0)):
        return False
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), output.fileno())
    return True


def print_banner(text: str | None) -> None:
    """Print the warning that belongs to a result, red on a terminal; None prints nothing."""
    if text is not None:
        print(f"\033[1;31m{text}\033[0m" if sys.stdout.isatty() else text)


class Tenths:
    """Says at every tenth of the work how far it is, where no bar can be shown on a terminal."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._said = 0
        self._start_s = time.monotonic()

    def reach(self, share: float, text: str) -> None:
        """Note that this share of the work is done; `text` is added to a line about it.

        Nothing is said of the first seconds, so that short work stays silent.
        """
        tenths = int(share * 10 + 1e-9)
        if tenths > self._said:
            self._said = tenths
            taken_s = time.monotonic() - self._start_s
            if taken_s >= _QUIET_S:
                self._say(f"{tenths * 10}% after {taken_s:.0f} s  {text}")


class TextFormatter(logging.Formatter):
    """One line per record, whatever was logged; an exception's trace follows, each line indented.

    So nothing that a client has sent looks like a record of its own, or moves a terminal's cursor.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        trace = super().formatException(ei)
        return "\n".join(f"  {_printable(line)}" for line in trace.split("\n"))


class JsonFormatter(logging.Formatter):
    """One JSON object per record, the exception's trace in a field of its own."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _printable(text: str) -> str:
    """A text with its control characters and line ends escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def configure_logs(kind: str) -> None:
    """Send INFO and above to stderr, as "text" or "json"."""
    handler = logging.StreamHandler()
    if kind == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def make_parser(
    program: str, command: Run, *, description: str | None = None, is_short: bool = False
) -> ArgumentParser:
    """Return the parser of a command; its help has all options, or if short the common ones."""
    from jsonargparse import ArgumentParser, set_parsing_settings

    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    kinds = _dataclasses(command).values()
    settings = [field for kind in kinds for field in fields(kind)]
    text = cleandoc(description or command.__doc__ or "")
    parser = ArgumentParser(
        prog=program,
        usage=f"{program} {_usage(settings)}",
        description=_headed(text) if is_short else text,
        formatter_class=_make_formatter(settings, is_short),
    )
    for kind in kinds:
        parser.add_class_arguments(kind, as_group=False)
    if is_short:
        options = [name for kind in kinds for name in _types(kind)]
        needed = [field.name for field in settings if _is_required(field)]
        first = list(dict.fromkeys([*needed, *options]))[:_MAX_SHORT]
        _hide_rare_options(parser, getattr(command, "common_options", first), len(options))
    else:
        parser.add_argument("--help-all", action="help", help="Show this help message and exit.")
    return parser


def _make_formatter(settings: Sequence[Field[Any]], is_short: bool) -> type[Any]:
    """Return a formatter that keeps the description's lines and writes options with hyphens."""
    from jsonargparse import DefaultHelpFormatter

    positional = {field.name for field in settings if field.metadata.get("positional")}

    class Formatter(DefaultHelpFormatter):
        def __init__(self, prog: str) -> None:
            super().__init__(prog, max_help_position=32, width=100)  # type: ignore[no-untyped-call]

        def start_section(self, heading: str | None) -> None:
            is_shown = not is_short or heading == "options"
            super().start_section(heading if is_shown else SUPPRESS)

        def _fill_text(self, text: str, width: int, indent: str) -> str:
            return "".join(indent + line for line in text.splitlines(keepends=True))

        def _get_default_metavar_for_optional(self, action: Action) -> str:
            hint = getattr(action, "_typehint", None)
            for kind, name in ((int, "N"), (float, "X")):
                if hint in (kind, kind | None):
                    return name
            return str(super()._get_default_metavar_for_optional(action)).rpartition("_")[2]

        def _format_action_invocation(self, action: Action) -> str:
            if is_short and action.dest in positional:
                return action.dest.upper()
            hint = getattr(action, "_typehint", None)
            if is_short and hint is bool and not action.default:
                return action.option_strings[0]
            if is_short and _is_list(hint):
                return f"{action.option_strings[0]} ITEM ..."
            return str(super()._format_action_invocation(action))

        def _get_help_string(self, action: Action) -> str:
            is_done = hasattr(action, "_jsonargparse_preexpanded_help")
            if not is_short or is_done or isinstance(action, _HelpAction):
                return str(super()._get_help_string(action))
            says_default = action.default not in (None, False, [], (), {}, SUPPRESS)
            sentence = re.split(r"(?<=[a-z)]\.)\s+(?=[A-Z0-9])", action.help or "")[0]
            return sentence + " (default: %(default)s)" * says_default

        def format_help(self) -> str:
            text = re.sub(r"--[\w.]+", lambda match: _hyphens(match[0]), super().format_help())
            if is_short:
                text = re.sub(r"\n\n(?=  (--|[A-Z]+  ))", "\n", text)
            return as_typed(text)

    return Formatter


def _hide_rare_options(parser: ArgumentParser, common: Sequence[str], num_options: int) -> None:
    """Take the others out of the help, and say at its end where they are."""
    for action in parser._actions:
        if action.dest not in ("help", *common):
            action.help = SUPPRESS
    if num_options > len(common):
        parser.epilog = f"{parser.prog} --help-all shows all {num_options} options"


def _headed(text: str) -> str:
    """The first paragraph, and those with a heading of their own: examples, recipes."""
    first, *others = re.split(r"\n{2,}", text)
    return "\n\n".join([first, *(part for part in others if part.splitlines()[0].endswith(":"))])


def _dataclasses(command: Run) -> dict[str, type[Any]]:
    """The command's parameters that are dataclasses."""
    hints = get_type_hints(command)
    hints.pop("return", None)
    return {
        name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)
    }


def _types(kind: type[Any], prefix: str = "") -> dict[str, Any]:
    """Type of each option of a dataclass, nested ones included."""
    hints = get_type_hints(kind)
    found: dict[str, Any] = {}
    for field in fields(kind):
        name, hint = f"{prefix}{field.name}", hints[field.name]
        if is_dataclass(hint) and isinstance(hint, type):
            found |= _types(hint, f"{name}.")
        else:
            found[name] = hint
    return found


def _usage(settings: Sequence[Field[Any]]) -> str:
    """What must be given, positional fields first."""
    words = [field.name.upper() for field in settings if field.metadata.get("positional")]
    for field in settings:
        if _is_required(field) and not field.metadata.get("positional"):
            words.append(f"--{field.name} {field.name.upper()}")
    return " ".join([*words, "[options]"])


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _as_options(
    arguments: Sequence[str], types: Mapping[str, Any], positional: Sequence[str]
) -> list[str]:
    """The arguments as `--field=value` words, which leave the parser nothing to guess."""
    words, options, loose = deque(arguments), list[str](), list[str]()
    while words:
        word = words.popleft()
        if word == "--":
            loose.extend(words)
            break
        if word in HELP:
            options.append("--help" if word == "-h" else word)
        elif word.startswith("--"):
            options.append(_option(word, words, types))
        else:
            loose.append(word)
    for name in positional:
        if loose and _is_list(types[name]):
            options.append(f"--{name}={_list_of(loose, types[name])}")
            loose = []
        elif loose:
            options.append(f"--{name}={loose.pop(0)}")
    return options + loose


def _option(word: str, words: deque[str], types: Mapping[str, Any]) -> str:
    """One option with its value, which is taken off `words` where it stands there."""
    name, equals, value = word[2:].partition("=")
    name = name.replace("-", "_")
    option = f"--{name}"
    hint = types.get(name)
    if hint is None and name.startswith("no_") and types.get(name[3:]) is bool and not equals:
        return f"--{name[3:]}=false"
    if equals:
        return f"{option}={_list_value([value], hint)}" if _is_list(hint) else f"{option}={value}"
    if hint is bool:
        # Any word may follow --json, "true" too.
        is_said = bool(words) and words[0].lower() in ("true", "false") and name != "json"
        return f"{option}={words.popleft() if is_said else 'true'}"
    if not words or words[0].startswith("--"):
        return option
    if not _is_list(hint):
        return f"{option}={words.popleft()}"
    items = [words.popleft()]
    while words and not items[0].startswith("[") and not words[0].startswith("--"):
        items.append(words.popleft())
    return f"{option}={_list_value(items, hint)}"


def _is_list(hint: Any) -> bool:
    return any(get_origin(part) in (list, tuple) for part in (hint, *get_args(hint)))


def _list_value(items: Sequence[str], hint: Any) -> str:
    """The value of a list's option; what is written as a list already stays."""
    if len(items) == 1 and (items[0].startswith("[") or "," in items[0] or items[0] == "null"):
        return items[0]
    return _list_of(items, hint)


def _list_of(items: Sequence[str], hint: Any) -> str:
    """Words as a list that the parser reads."""
    inner = hint if get_origin(hint) in (list, tuple) else get_args(hint)[0]
    is_number = get_args(inner)[:1] in ((int,), (float,))
    return f"[{', '.join(items)}]" if is_number else json.dumps(items)


def _in_one_line(message: str, types: Mapping[str, Any]) -> str:
    """A parser's message as the setting, the value it got, and what it takes."""
    missing = re.search(r"arguments are required: ([\w.]+)", message)
    if missing is not None:
        return f"{_hyphens(missing[1])} is missing; see --help for the settings"
    found = re.search(r'Parser key "([\w.]+)', message)
    value = re.search(r"(?:Got|Given) value: (.*)", message)
    if found is None or value is None:
        return f"{_hyphens(' '.join(message.split()))}; see --help-all for the settings"
    name, hint = _hyphens(found[1]), types.get(found[1])
    if _is_list(hint) and not value[1].startswith("["):
        items = ", ".join(item.strip() for item in value[1].split(","))
        return f"{name} is {value[1]!r}; use '[{items}]'"
    return f"{name} is {value[1]!r}; it takes {_shown(hint)} (see --help-all)"


def _hyphens(text: str) -> str:
    """The same with hyphens in the names of options."""
    return re.sub(r"(?<=[a-z0-9])_(?=[a-z0-9])", "-", text)


def _shown(hint: Any) -> str:
    if isinstance(hint, type) and not get_args(hint):
        return hint.__name__
    return "another value" if hint is None else str(hint).replace("typing.", "")
