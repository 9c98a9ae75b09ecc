"""Command lines of the three packages: commands, options from frozen dataclasses, form of the log.

A command is a function whose parameters are dataclasses. Each field is an option, its docstring the
help, the function's docstring the description:

    COMMANDS = {"score": ("scoring_service.commands.score:score", "score prompts with a service")}
    run_main("python -m scoring_service", ABOUT, COMMANDS, arguments)

Options are written with hyphens (`--batch-size`; underscores are understood), nested fields with
dots (`--loss.delta .3`), flags without a value (`--json`, `--no-resume`), and lists as words or as
JSON (`--lengths 16 32`, `--lengths '[16, 32]'`). Fields marked POSITIONAL need no option.
"""

from __future__ import annotations

import errno
import importlib
import json
import logging
import re
import sys
from argparse import ArgumentError
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args, get_origin, get_type_hints

from scoring_service.errors import ConfigError, LengthwiseError

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
_DISK_ERRORS: Final = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EEXIST,  # a file where a folder is to be made
    errno.ENOTDIR,
    errno.EISDIR,
}


def run_main(
    program: str,
    about: str,
    commands: Commands,
    arguments: Sequence[str] | None = None,
    *,
    configure_logging: Callable[[], None] | None = None,
) -> int:
    """Run the command that the first argument names; returns the exit code, 2 for bad input.

    Args:
        program: as it is typed, e.g. "python -m training".
        about: text of --help; `{commands}` in it becomes the table of commands.
        commands: a function of dataclasses is given them from options; one whose parameter is
            `arguments: Sequence[str]` reads these itself.
        arguments: without the program's name; None: those of this process.
        configure_logging: called before the command; None: INFO and above to stderr.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words or words[0] in ("-h", "--help"):
        width = max(map(len, commands))
        lines = [f"  {name:{width}}  {text}" for name, (_, text) in commands.items()]
        print(about.replace("{commands}", "\n".join(lines)).rstrip())
        return 0 if words else 2
    name, *rest = words
    if name not in commands:
        known = ", ".join(commands)
        print(f"error: no command named {name!r}; use one of {known}", file=sys.stderr)
        return 2
    (configure_logging or _log_to_stderr)()

    def run() -> int | None:
        module, _, function = commands[name][0].partition(":")
        command: Run = getattr(importlib.import_module(module), function)
        if _dataclasses(command) or not get_type_hints(command).keys() - {"return"}:
            return run_command(f"{program} {name}", command, rest)
        return command(rest)

    return exit_code_of(run)


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
        SystemExit: --help was asked for, and printed.
    """
    kinds = _dataclasses(command)
    settings = [field for kind in kinds.values() for field in fields(kind)]
    types = {name: hint for kind in kinds.values() for name, hint in _types(kind).items()}
    positional = [field.name for field in settings if field.metadata.get("positional")]
    given = _as_options(arguments, types, positional)
    parser = _make_parser(program, description or command.__doc__, _usage(settings))
    for kind in kinds.values():
        parser.add_class_arguments(kind, as_group=False)
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
    """Call `run`; errors of ours, full disks and Ctrl-C become one line on stderr and a code."""
    try:
        return run() or 0
    except LengthwiseError as error:
        # Foreign messages in it may have lines, and values control characters, of their own.
        line = " ".join(str(error).split())
        print(
            "error: " + "".join(c if c.isprintable() else repr(c)[1:-1] for c in line),
            file=sys.stderr,
        )
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


def print_banner(text: str | None) -> None:
    """Print the warning that belongs to a result, red on a terminal; None prints nothing."""
    if text is not None:
        print(f"\033[1;31m{text}\033[0m" if sys.stdout.isatty() else text)


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
        return json.dumps(entry, ensure_ascii=False)


def configure_logs(kind: str) -> None:
    """Send INFO and above to stderr, as "text" or "json"."""
    handler = logging.StreamHandler()
    if kind == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _log_to_stderr() -> None:
    """Log INFO and above as lines on stderr."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)


def _make_parser(program: str, description: str | None, usage: str) -> ArgumentParser:
    """A parser whose help keeps the description's lines and writes options with hyphens."""
    from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_parsing_settings

    class Formatter(DefaultHelpFormatter):
        def _fill_text(self, text: str, width: int, indent: str) -> str:
            return "".join(indent + line for line in text.splitlines(keepends=True))

        def format_help(self) -> str:
            return re.sub(
                r"--[\w.]+", lambda match: match[0].replace("_", "-"), super().format_help()
            )

    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    return ArgumentParser(
        prog=program,
        usage=f"{program} {usage}",
        description=cleandoc(description or ""),
        formatter_class=Formatter,
    )


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
        is_required = field.default is MISSING and field.default_factory is MISSING
        if is_required and not field.metadata.get("positional"):
            words.append(f"--{field.name} {field.name.upper()}")
    return " ".join([*words, "[options]"])


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
        if word in ("-h", "--help"):
            options.append(word)
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
        return f"{missing[1]} is missing; see --help for the settings"
    found = re.search(r'Parser key "([\w.]+)', message)
    value = re.search(r"(?:Got|Given) value: (.*)", message)
    if found is None or value is None:
        return f"{' '.join(message.split())}; see --help for the settings"
    hint = types.get(found[1])
    if _is_list(hint) and not value[1].startswith("["):
        items = ", ".join(item.strip() for item in value[1].split(","))
        return f"{found[1]} is {value[1]!r}; use '[{items}]'"
    return f"{found[1]} is {value[1]!r}; it takes {_shown(hint)} (see --help)"


def _shown(hint: Any) -> str:
    if isinstance(hint, type) and not get_args(hint):
        return hint.__name__
    return "another value" if hint is None else str(hint).replace("typing.", "")
